// `--dop auto`: chooses model workers and attention workers for the threads of an instance on this machine, or none.
import { planThreads, type ThreadChoice, type ThreadPlan } from '../../../core/attention-workers/thread-planner.ts';
import { parameters } from '../../../core/cost/memory.ts';
import type { ModelShape } from '../../../core/cost/shapes.ts';
import { batchLimits } from '../../../core/scheduler/executor/token-limits.ts';
import { kvShapeOf } from '../../../engine/load-model.ts';
import { findNative } from '../../../kernel/native/addon.ts';
import { pageTokens } from '../../../util/step.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import { type DopOptions, dopConflict, modelWorkersMax } from '../../options/attention-worker-settings.ts';
import {
  computes,
  defaultInstance,
  type InstanceOptions,
  type ModelOptions,
  type ServeOptions,
} from '../../options/options.ts';
import { counted } from '../../terminal/fields.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import { locateModel } from '../model/locate-model.ts';
import { parameterCount } from '../model/model-facts.ts';
import { contextTokens } from '../model/served-model.ts';
import { measureTeams } from './thread-speeds.ts';

/** Options of `serve` or `join`; an instance that joins has no TBT. */
type AutoOptions = ModelOptions & DopOptions & Partial<Pick<ServeOptions, 'tbtSlo'>>;

/**
 * With `--dop auto` options with the chosen numbers, or without attention workers, because the instance is faster alone
 * or they cannot run. One log line has the reason. Other options are unchanged.
 * @param own the instance, one of `options.instances` if there are some @param measure speeds of thread teams
 */
export async function withChosenDop<Options extends AutoOptions>(
  options: Options,
  own: InstanceOptions,
  log: (line: string) => void,
  measure: typeof measureTeams = measureTeams,
): Promise<Options> {
  if (options.dop !== 'auto') return options;
  const none = { attentionWorkers: undefined, partition: 'heads', attentionForm: 'ranges' } as const;
  const alone = { ...options, ...none, dop: undefined, staggeredBatches: undefined };
  const native = findNative();
  const conflict = native.kind === 'absent' ? native.why : dopConflict(options, 1, 1);
  if (conflict !== undefined) {
    log(`--dop auto chooses no attention workers: ${conflict}`);
    return alone;
  }
  const { path } = await locateModel(options.model);
  const files = openModel(path);
  try {
    const { plan, conditions } = planFor(files, options, own, measure);
    log(`--dop auto chooses ${describe(plan)} (${conditions})`);
    return plan.chosen === undefined ? alone : { ...options, ...flagsOf(plan.chosen) };
  } finally {
    files.close();
  }
}

/** (instances): with `--dop auto` the options of each, chosen once for instances with equal threads and memory. */
export async function withChosenDops(
  options: ServeOptions,
  instances: readonly InstanceOptions[],
  log: (line: string) => void,
  measure: typeof measureTeams = measureTeams,
): Promise<readonly ServeOptions[]> {
  const chosen = new Map<string, ServeOptions>();
  const each: ServeOptions[] = [];
  for (const own of instances) {
    const decodes = computes(own) && own.role !== 'prefill';
    const key = `${own.threads} ${own.kvMemory}`;
    const known = decodes ? chosen.get(key) : options;
    const of = known ?? (await withChosenDop(options, own, log, measure));
    if (decodes) chosen.set(key, of);
    each.push(of);
  }
  return each;
}

function flagsOf({ modelWorkers, attentionWorkers, attentionDevices, batches }: ThreadChoice) {
  return {
    dop: `${modelWorkers},${attentionWorkers}`,
    // The rotation of several model workers gives the number of their batches.
    staggeredBatches: modelWorkers > 1 ? undefined : batches,
    // One batch is computed on one side at a time, by all threads.
    attentionThreads: batches === 1 ? undefined : attentionDevices,
  };
}

function planFor(files: ModelFiles, options: AutoOptions, own: InstanceOptions, measure: typeof measureTeams) {
  const { partition, staggeredBatches, weights, inputs, kvType, tbtSlo } = options;
  const instances = (options.instances ?? [defaultInstance]).filter(computes);
  const threads = own.threads ?? Math.max(1, Math.floor(options.threads / instances.length));
  const kvMemory = own.kvMemory ?? options.kvMemory;
  const context = contextTokens(files, { ...options, kvMemory });
  const { kv } = kvShapeOf(files, { weights, inputs, kvType, context });
  const { speeds, weightBytes } = measure(files, threads, options);
  const { kvHeads, headDim } = kv;
  // The lengths of requests are unknown at the start.
  const sequenceTokens = Math.ceil(context / 2);
  const plan = planThreads({
    model: shapeOf(files),
    weightBytes,
    kvBytes: kv.pageBytes / (2 * kvHeads * headDim * pageTokens),
    kvMemoryBytes: kvMemory ?? defaultKvBytes(kv, context, instances.length),
    ...{ speeds, partition, staggeredBatches, modelWorkersMax },
    limits: {
      contextTokens: sequenceTokens,
      tbtUsMax: tbtSlo !== undefined && 'us' in tbtSlo ? tbtSlo.us : Number.POSITIVE_INFINITY,
      sequencesMax: batchLimits.sequencesMax,
    },
  });
  const { kvBytesPerSecond } = speeds[speeds.length - 1];
  const measured = `measured: attention ${(kvBytesPerSecond / 1e9).toFixed(1)} GB/s on ${counted(threads, 'thread')}`;
  return { plan, conditions: `${measured}; sequences of ${sequenceTokens} tokens, half of the context` };
}

function shapeOf(files: ModelFiles): ModelShape {
  const { config } = files;
  const { layers, heads, kvHeads, headDim } = config;
  const sizes = { hidden: config.hiddenSize, intermediate: config.intermediateSize, vocabulary: config.vocabSize };
  const shape = { layers, heads, kvHeads, headDim, ...sizes, tiedHead: config.tieEmbeddings };
  const count = parameterCount(files);
  const difference = (gated: boolean): number => Math.abs(count - parameters({ ...shape, gated }));
  return { ...shape, gated: difference(true) < difference(false) };
}

function describe({ chosen, division, oneInstance }: ThreadPlan): string {
  if (chosen !== undefined) return `${figuresOf(chosen)}; one instance ${rateOf(oneInstance)}`;
  if (division === undefined) return 'no attention workers: no division of the threads can run';
  return `no attention workers: one instance ${rateOf(oneInstance)}; the best division, ${figuresOf(division)}`;
}

function figuresOf(choice: ThreadChoice): string {
  const { modelWorkers, attentionWorkers, modelDevices, attentionDevices, batches, parts } = choice;
  const sides = [
    `${counted(modelWorkers, 'model worker')} on ${counted(modelDevices, 'thread')}`,
    `${counted(attentionWorkers, 'attention worker')} on ${counted(attentionDevices, 'thread')}`,
    counted(batches, 'batch', 'batches'),
    `t_m ${milliseconds(parts.modelUs)}`,
    `t_a ${milliseconds(parts.attentionUs)}`,
    rateOf(choice),
  ];
  return `(${modelWorkers},${attentionWorkers}): ${sides.join(', ')}`;
}

function rateOf(choice: ThreadChoice | undefined): string {
  if (choice === undefined) return 'cannot decode within the TBT';
  return `${choice.tokensPerSecond.toPrecision(3)} tokens/s with ${counted(choice.sequences, 'sequence')}`;
}

function milliseconds(us: number): string {
  return `${(us / 1000).toPrecision(3)} ms`;
}
