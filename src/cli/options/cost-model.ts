// The cost model of an instance from hardware, model, precision, parallel sizes and measured tables.

import { heldModel, kvBytesPerTokenOf, parameters } from '../../core/cost/memory.ts';
import { RooflineCost, type StepCostModel } from '../../core/cost/roofline.ts';
import { type Drafter, SpeculativeCost } from '../../core/cost/speculative-cost.ts';
import type { MeasuredTables } from '../../core/cost/tables/measured-tables.ts';
import { fittedOverheads, prepareKernels, type StepKernels, TableCost } from '../../core/cost/tables/table-cost.ts';
import { readMeasuredTables } from '../simulate/measured-tables.ts';
import { UsageError } from '../usage-error.ts';
import { hardwareSpec, modelSpec } from './specs.ts';

export const costKinds = ['roofline', 'table'] as const;
export type CostKind = (typeof costKinds)[number];

export interface CostOptions {
  readonly cost: CostKind;
  /** Directory of measured tables. */
  readonly tables?: string | undefined;
  readonly model: string;
  readonly hardware: string;
  /** YAML files with more models and hardware. */
  readonly models?: string | undefined;
  readonly machines?: string | undefined;
  readonly tp?: number | undefined;
  readonly pp: number;
  readonly precision: 'bf16' | 'fp8';
  /** Type of the keys and values. */
  readonly kvType: 'bf16' | 'fp8';
  readonly expertImbalance?: number | undefined;
  readonly specTokens?: number | undefined;
  readonly specAcceptance?: number | undefined;
  /** Model that drafts tokens; undefined: drafting takes no time. */
  readonly specModel?: string | undefined;
  /** Tokens of the largest step, whose activations take memory. */
  readonly chunkTokens?: number | undefined;
  /** Share of the devices' memory for weights, activations and KV. */
  readonly gpuMemoryUtilization?: number | undefined;
}

/** Default share of the memory for weights, activations and KV, as in vLLM. */
export const defaultMemoryShare = 0.9;

export const defaultChunkTokens = 8192;

/** Devices that share each layer, and the machines of an instance: a part of one, or several whole ones. */
export interface Span {
  readonly tensorParallel: number;
  readonly machines: number;
}

/** @throws UsageError if the devices exceed one machine and do not fill whole machines evenly */
export function spanOf({ hardware, tp, pp }: CostOptions, devices: number): Span {
  const tensorParallel = tp ?? Math.max(1, Math.floor(devices / pp));
  const machines = (tensorParallel * pp) / devices;
  const even = tensorParallel % devices === 0 || devices % tensorParallel === 0;
  if (machines <= 1 || (Number.isInteger(machines) && even)) return { tensorParallel, machines };
  throw new UsageError(
    `Cannot use --tp ${tensorParallel} with --pp ${pp}: an instance beyond one machine must fill whole machines: ${hardware} has ${devices} devices`,
  );
}

/** @throws UsageError if tables, arithmetic or devices are missing, or the model does not fit */
export function createCostModel(options: CostOptions): StepCostModel {
  const { specTokens, specAcceptance, specModel, ...target } = options;
  const cost = plainCostModel(target);
  if (specTokens === undefined) {
    if (specAcceptance === undefined && specModel === undefined) return cost;
    const flag = specModel === undefined ? `--spec-acceptance ${specAcceptance}` : `--spec-model ${specModel}`;
    throw new UsageError(`Cannot use ${flag}: it needs --spec-tokens`);
  }
  if (specAcceptance === undefined)
    throw new UsageError(
      `Cannot use --spec-tokens ${specTokens}: state the share of accepted tokens with --spec-acceptance`,
    );
  const drafter = specModel === undefined ? undefined : drafterOf(target, specModel);
  return rangeErrorsAsUsage(
    () => new SpeculativeCost(cost, { tokens: specTokens, acceptance: specAcceptance, drafter }),
  );
}

/** The drafting model has the devices of the target, and memory for its weights beside it. */
function drafterOf(target: CostOptions, specModel: string): Drafter {
  const options = { ...target, model: specModel };
  const [shape, targetShape] = [instanceShape(options).shape, instanceShape(target).shape];
  const heldBytes = ({ model, tensorParallel, kvBytes }: typeof shape) =>
    rangeErrorsAsUsage(() => kvBytesPerTokenOf(heldModel(model, tensorParallel), kvBytes));
  return {
    cost: plainCostModel(options),
    weightBytes: parameters(shape.model) * shape.weightBytes,
    heldKvBytes: { target: heldBytes(targetShape), drafter: heldBytes(shape) },
  };
}

function plainCostModel(options: CostOptions): StepCostModel {
  const { device, machine, shape, efficiency } = instanceShape(options);
  if (options.cost === 'table') return new TableCost(measuredKernels(options, readTables(options)), fittedOverheads);
  return rangeErrorsAsUsage(() => new RooflineCost({ ...shape, device, machine, efficiency }));
}

/** @throws UsageError if a kernel of the model was not measured, or the devices cannot hold its weights */
export function measuredKernels(options: CostOptions, tables: MeasuredTables): StepKernels {
  const { device, machine, shape } = instanceShape(options);
  if (machine !== undefined)
    throw new UsageError('Cannot use --cost table over several machines: there are no measurements');
  return rangeErrorsAsUsage(() => prepareKernels({ ...shape, device, tables }));
}

/** @throws UsageError naming the missing file */
export function readTables(options: CostOptions): MeasuredTables {
  if (options.tables === undefined) throw new UsageError('Cannot use --cost table: name a directory with --tables');
  return readMeasuredTables(options.tables, options);
}

/** @throws UsageError if the hardware lacks the precision, or `--tp` and `--pp` do not fill its machines */
export function instanceShape(options: CostOptions) {
  const { hardware, precision } = options;
  const device = hardwareSpec(hardware, options.machines);
  const operationsPerSecond = device.operationsPerSecond[precision];
  if (operationsPerSecond === undefined) {
    throw new UsageError(`Cannot use --precision ${precision}: ${hardware} has no such arithmetic`);
  }
  const { tensorParallel, machines } = spanOf(options, device.devices);
  const shape = {
    model: modelSpec(options.model, options.models),
    tensorParallel,
    pipelineParallel: options.pp,
    weightBytes: bytesOf(precision),
    kvBytes: bytesOf(options.kvType),
    expertImbalance: options.expertImbalance,
    memoryShare: options.gpuMemoryUtilization ?? defaultMemoryShare,
    stepRows: options.chunkTokens ?? defaultChunkTokens,
  };
  return {
    device: { ...device, operationsPerSecond },
    machine: machines > 1 ? device : undefined,
    shape,
    efficiency: device.efficiency,
  };
}

function bytesOf(precision: 'bf16' | 'fp8'): number {
  return precision === 'fp8' ? 1 : 2;
}

/** @param flag the flag and its value that an error names */
export function rangeErrorsAsUsage<T>(make: () => T, flag?: string): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    const { message } = error;
    throw new UsageError(
      flag === undefined ? message : `Cannot use ${flag}: ${message[0].toLowerCase()}${message.slice(1)}`,
    );
  }
}
