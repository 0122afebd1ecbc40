// `kvasir plan --dop`: how many devices to give to model workers and to attention workers.

import { z } from 'zod';
import {
  type DopCandidate,
  type DopChoice,
  type DopLimits,
  largestDecodeBatch,
  planDop,
} from '../../core/attention-workers/dop-planner.ts';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import { decodeShape } from '../../core/protocol/step-shape.ts';
import { createCostModel } from '../options/cost-model.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { hardwareSpec, modelSpec } from '../options/specs.ts';
import { counted } from '../terminal/fields.ts';
import { UsageError } from '../usage-error.ts';
import type { RawFlags } from './plan-clusters.ts';
import { attentionWorkersCost, simulatedDopConflict, withoutAttentionWorkers } from './simulated-attention-workers.ts';
import { type SimulationOptions, simulationSchema } from './simulated-run.ts';
import { openWorkload } from './workload-source.ts';

const alphaDefault = 0.2;
const count = numeric(z.number().int().min(1));

const planSchema = z.object({
  objective: z.enum(['throughput', 'cost']).default('cost'),
  alpha: numeric(z.number().positive()).default(alphaDefault),
  modelDevicesMax: count.optional(),
  attentionDevicesMax: count.optional(),
  dopRows: count.default(12),
});

/** @param flags those of `plan`; `--dop` without (a, b) */
export async function planDopFromFlags(flags: RawFlags) {
  const { settings, options, limits, lengths } = await problemOf(flags, undefined);
  const choices = planDop(candidatesOf(options, settings), limits, settings.objective);
  if (choices.length === 0)
    throw new Error(
      `Cannot divide ${options.model} on ${options.hardware} and ${options.attentionHardware ?? options.hardware}: no (a, b) holds the model and one sequence of ${limits.contextTokens} tokens within the TBT`,
    );
  return {
    model: options.model,
    ...lengths,
    contextTokens: limits.contextTokens,
    sequencesMax: limits.sequencesMax,
    alpha: settings.alpha,
    objective: settings.objective,
    dop: choices.slice(0, settings.dopRows).map(figuresOf),
    coupled: coupledRows(options, limits),
  };
}

/**
 * `simulate --dop auto`: the division with the most tokens per price, or none if instances without attention workers
 * have more, or if attention workers exclude other options. @param log receives the choice and its figures in a line
 */
export async function withPlannedDop(
  options: SimulationOptions,
  log: (line: string) => void,
): Promise<SimulationOptions> {
  if (options.dop !== 'auto') return options;
  const without = withoutAttentionWorkers(options);
  const conflict =
    options.cost === 'roofline' ? simulatedDopConflict(options) : `--cost ${options.cost} has no attention of its own`;
  if (conflict !== undefined) {
    log(`--dop auto chooses no attention workers: ${conflict}`);
    return without;
  }
  const { limits } = await limitsOf(options, alphaDefault);
  const [best] = planDop(candidatesOf(options, {}), limits, 'cost');
  const whole = fitting(() => createCostModel({ ...without }));
  const instance = whole && coupledRow(whole, devicesOf(options), limits, options);
  const described = best && `(${best.modelDevices},${best.attentionDevices}) with ${describeChoice(best)}`;
  const instances = `instances without them: ${instance ? rateOf(instance) : 'none decodes within the TBT'}`;
  const lengths = `sequences of ${limits.contextTokens} tokens, at most ${limits.sequencesMax}`;
  if (best === undefined || best.tokensPerPrice <= (instance?.tokensPerPrice ?? 0)) {
    log(`--dop auto chooses no attention workers: ${instances}; ${described ?? 'no division can run'} (${lengths})`);
    return without;
  }
  log(`--dop auto chooses ${described}; ${instances} (${lengths})`);
  const dop = `${best.modelDevices},${best.attentionDevices}`;
  return { ...options, dop, staggeredBatches: best.batches, tp: undefined };
}

function describeChoice({ batches, parts, ...choice }: DopChoice): string {
  const [model, attention] = [parts.modelUs, parts.attentionUs].map((us) => `${(us / 1000).toPrecision(3)} ms`);
  return `${counted(batches, 'batch', 'batches')}: t_m ${model}, t_a ${attention}, ${rateOf(choice)}`;
}

function rateOf({ tokensPerSecond, tokensPerPrice }: { tokensPerSecond: number; tokensPerPrice: number }): string {
  return `${Math.round(tokensPerSecond)} tokens/s, ${Math.round(tokensPerPrice)} tokens/$`;
}

/** Devices of an instance without attention workers. */
function devicesOf({ hardware, machines, tp, pp }: SimulationOptions): number {
  return tp === undefined ? hardwareSpec(hardware, machines).devices : tp * pp;
}

/** The curves of one division by number of sequences, up to its memory. @param dop (a, b) */
export async function dopCurves(flags: RawFlags, dop: string) {
  const { options, limits, lengths } = await problemOf(flags, dop);
  const { contextTokens, alpha } = limits;
  const cost = attentionWorkersCost({ ...options, dop, tp: undefined });
  const most = Math.min(options.sequences, Math.floor(cost.kvCapacityTokens / contextTokens));
  const counts = [...curveSequences.filter((sequences) => sequences < most), most];
  const curves = counts.map((sequences) => {
    const shape = decodeShape(sequences, sequences * contextTokens);
    const { modelUs, attentionUs, networkUs, stepUs } = cost.parts(shape);
    const { modelFlops, attentionBandwidth } = cost.utilisation(shape);
    return {
      sequences,
      modelMs: modelUs / 1000,
      attentionMs: attentionUs / 1000,
      networkMs: networkUs / 1000,
      tbtMs: stepUs / 1000,
      tokensPerSecond: (sequences * 1e6) / stepUs,
      modelMfu: modelFlops,
      attentionMbu: attentionBandwidth,
      gigabytesPerSecondMin: cost.bytesPerSecondMin(shape, alpha) / 1e9,
    };
  });
  return {
    model: options.model,
    dop,
    staggeredBatches: options.staggeredBatches,
    ...lengths,
    contextTokens,
    alpha,
    curves,
  };
}

const curveSequences = [1, 2, 4, 10, 20, 40, 100, 200, 300, 400, 600, 800, 1000, 1500, 2000, 3000];

/** Settings of the search, and what follows from the workload. */
async function problemOf(flags: RawFlags, dop: string | undefined) {
  const { objective, alpha, modelDevicesMax, attentionDevicesMax, dopRows, ...rest } = flags;
  const settings = readOptions(planSchema, { objective, alpha, modelDevicesMax, attentionDevicesMax, dopRows });
  const options = readOptions(simulationSchema, { ...rest, dop });
  return { settings, options, ...(await limitsOf(options, settings.alpha)) };
}

async function limitsOf(options: SimulationOptions, alpha: number) {
  const lengths = await meanLengths(options);
  const limits = {
    contextTokens: Math.round(lengths.inputTokens + lengths.outputTokens / 2),
    tbtUsMax: tbtUsMaxOf(options),
    sequencesMax: options.sequences,
    alpha,
  };
  return { limits, lengths };
}

/** Mean lengths of the first requests of the workload. */
async function meanLengths(options: SimulationOptions) {
  let [requests, input, output] = [0, 0, 0];
  const turnTimes = options.trace === undefined ? 'estimated' : undefined;
  for await (const piece of openWorkload({ ...options, turnTimes })) {
    for (const { inputTokens, outputTokens } of piece.requests) {
      requests++;
      input += inputTokens;
      output += outputTokens;
    }
    if (requests >= requestsRead) break;
  }
  if (requests === 0) throw new UsageError('Cannot plan: the workload has no request');
  return { inputTokens: input / requests, outputTokens: output / requests };
}

const requestsRead = 100_000;

/** @throws UsageError for a multiple, which the choice itself would change */
function tbtUsMaxOf({ tbtSlo }: SimulationOptions): number {
  if (tbtSlo === undefined) return Number.POSITIVE_INFINITY;
  if ('us' in tbtSlo) return tbtSlo.us;
  throw new UsageError(`Cannot use --tbt-slo ${tbtSlo.times}x with --dop: write a time, for example 100ms`);
}

/** Replicas of 1, 2, 4... devices, up to four of them, with every number of attention devices that divides the KV. */
function candidatesOf(
  options: SimulationOptions,
  { modelDevicesMax, attentionDevicesMax }: Partial<z.infer<typeof planSchema>>,
): readonly DopCandidate[] {
  const model = deviceOf(options.hardware, options);
  const attention = deviceOf(options.attentionHardware ?? options.hardware, options);
  const modelMost = modelDevicesMax ?? model.devices;
  const attentionMost = attentionDevicesMax ?? attention.devices;
  const { kvHeads } = modelSpec(options.model, options.models);
  const candidates: DopCandidate[] = [];
  for (let devices = 1; devices <= modelMost; devices *= 2) {
    for (const replicas of [1, 2, 3, 4]) {
      const modelDevices = devices * replicas;
      if (modelDevices > modelMost) break;
      for (let attentionDevices = 1; attentionDevices <= attentionMost; attentionDevices++) {
        if (options.partition === 'heads' && kvHeads % attentionDevices !== 0) continue;
        const batches = replicas + 1;
        const dop = `${modelDevices},${attentionDevices}`;
        const cost = fitting(() => attentionWorkersCost({ ...options, dop, staggeredBatches: batches, tp: undefined }));
        if (cost === undefined) continue;
        const pricePerHour = modelDevices * model.price + attentionDevices * attention.price;
        candidates.push({ modelDevices, attentionDevices, batches, cost, pricePerHour });
      }
    }
  }
  return candidates;
}

/** Undefined if the devices cannot hold the model or split its heads. */
function fitting<T>(create: () => T): T | undefined {
  try {
    return create();
  } catch (error) {
    if (error instanceof UsageError) return undefined;
    throw error;
  }
}

/** Devices of a machine, and the price of one per hour. @throws UsageError without a price */
function deviceOf(name: string, { machines }: SimulationOptions) {
  const { devices, pricePerHour } = hardwareSpec(name, machines);
  if (pricePerHour === undefined) throw new UsageError(`Cannot plan with ${name}: its entry has no pricePerHour`);
  return { devices, price: pricePerHour / devices };
}

/** Instances of the same hardware that compute attention themselves, for comparison. */
function coupledRows(options: SimulationOptions, limits: DopLimits) {
  const { devices } = deviceOf(options.hardware, options);
  const rows = [];
  for (let tp = 1; tp <= devices; tp *= 2) {
    const cost = fitting(() => createCostModel({ ...options, tp }));
    const row = cost && coupledRow(cost, tp, limits, options);
    if (row !== undefined) rows.push({ tp, ...row });
  }
  return rows.sort((a, b) => b.tokensPerPrice - a.tokensPerPrice);
}

/** Undefined: one sequence exceeds memory or TBT. */
function coupledRow(cost: StepCostModel, devices: number, limits: DopLimits, options: SimulationOptions) {
  const pricePerHour = devices * deviceOf(options.hardware, options).price;
  const sequences = largestDecodeBatch(cost, limits);
  if (sequences === 0) return undefined;
  const stepUs = cost.stepUs(decodeShape(sequences, sequences * limits.contextTokens));
  const tokensPerSecond = (sequences * 1e6) / stepUs;
  const tokensPerPrice = (tokensPerSecond * 3600) / pricePerHour;
  return { pricePerHour, sequences, tbtMs: stepUs / 1000, tokensPerSecond, tokensPerPrice };
}

function figuresOf({ modelDevices, attentionDevices, batches, parts, cost, ...choice }: DopChoice) {
  const { modelUs, attentionUs, networkUs, stepUs } = parts;
  return {
    dop: `${modelDevices},${attentionDevices}`,
    staggeredBatches: batches,
    pricePerHour: choice.pricePerHour,
    sequences: choice.sequences,
    kvCapacityTokens: cost.kvCapacityTokens,
    modelMs: modelUs / 1000,
    attentionMs: attentionUs / 1000,
    networkMs: networkUs / 1000,
    tbtMs: stepUs / 1000,
    tokensPerSecond: choice.tokensPerSecond,
    tokensPerPrice: choice.tokensPerPrice,
    gigabytesPerSecondMin: choice.bytesPerSecondMin / 1e9,
  };
}

export type DopPlan = Awaited<ReturnType<typeof planDopFromFlags>>;
export type DopCurves = Awaited<ReturnType<typeof dopCurves>>;
