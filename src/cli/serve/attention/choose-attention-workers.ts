// `serve --dop auto`: chooses model workers and attention workers for the threads of this machine, or none.
import { planThreads, type ThreadChoice, type ThreadPlan } from '../../../core/attention-workers/thread-planner.ts';
import { parameters } from '../../../core/cost/memory.ts';
import type { ModelShape } from '../../../core/cost/shapes.ts';
import { batchLimits } from '../../../core/scheduler/executor/token-limits.ts';
import { kvShapeOf } from '../../../engine/load-model.ts';
import { findNative } from '../../../kernel/native/addon.ts';
import { pageTokens } from '../../../util/step.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import {
  dopConflict,
  modelWorkersMax,
  type ServedAttentionWorkers,
  servedAttentionWorkers,
} from '../../options/attention-worker-settings.ts';
import { computes, defaultInstance, type ServeOptions } from '../../options/options.ts';
import { counted } from '../../terminal/fields.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import { locateModel } from '../model/locate-model.ts';
import { parameterCount } from '../model/model-facts.ts';
import { contextTokens } from '../model/served-model.ts';
import { measureTeams } from './thread-speeds.ts';

/**
 * Undefined: the instance computes attention itself, because that is faster or attention workers cannot run. The reason
 * is in one log line. @param measure speeds of thread teams of this machine
 */
export async function chooseAttentionWorkers(
  options: ServeOptions,
  log: (line: string) => void,
  measure: typeof measureTeams = measureTeams,
): Promise<ServedAttentionWorkers | undefined> {
  const native = findNative();
  const conflict = native.kind === 'absent' ? native.why : dopConflict(options, 1, 1);
  if (conflict !== undefined) {
    log(`--dop auto chooses no attention workers: ${conflict}`);
    return undefined;
  }
  const { path } = await locateModel(options.model);
  const files = openModel(path);
  try {
    const { plan, conditions } = planFor(files, options, measure);
    log(`--dop auto chooses ${describe(plan)} (${conditions})`);
    if (plan.chosen === undefined) return undefined;
    const { modelWorkers, attentionWorkers, modelDevices, attentionDevices, batches } = plan.chosen;
    const workers = servedAttentionWorkers({
      ...options,
      dop: `${modelWorkers},${attentionWorkers}`,
      staggeredBatches: modelWorkers > 1 ? undefined : batches,
    });
    const divided = { modelThreads: modelDevices, attentionThreads: attentionDevices };
    return workers && { ...workers, divided };
  } finally {
    files.close();
  }
}

function planFor(files: ModelFiles, options: ServeOptions, measure: typeof measureTeams) {
  const { partition, staggeredBatches, weights, inputs, tbtSlo } = options;
  const instances = (options.instances ?? [defaultInstance]).filter(computes);
  const own = instances.find(({ role }) => role !== 'prefill') ?? defaultInstance;
  const threads = own.threads ?? Math.max(1, Math.floor(options.threads / instances.length));
  const kvMemory = own.kvMemory ?? options.kvMemory;
  const context = contextTokens(files, { ...options, kvMemory });
  const { kv } = kvShapeOf(files, { weights, inputs, context });
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
