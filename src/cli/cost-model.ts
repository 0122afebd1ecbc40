// The cost model of an instance from what a command names: hardware, model, precision, parallel sizes, and measured tables if there are any.

import type { MeasuredTables } from '../policy/cost/measured-tables.ts';
import { RooflineCost, type StepCostModel, statedEfficiency } from '../policy/cost/roofline.ts';
import { fittedOverheads, layOutKernels, type StepKernels, TableCost } from '../policy/cost/table-cost.ts';
import { readMeasuredTables } from './measured-tables.ts';
import { hardwareSpec, modelSpec } from './specs.ts';
import { UsageError } from './usage-error.ts';

export const costKinds = ['roofline', 'table'] as const;
export type CostKind = (typeof costKinds)[number];

export interface CostOptions {
  readonly cost: CostKind;
  /** Directory of measured tables. */
  readonly tables?: string | undefined;
  readonly model: string;
  readonly hardware: string;
  /** Files with more of each. */
  readonly models?: string | undefined;
  readonly machines?: string | undefined;
  readonly tp?: number | undefined;
  readonly pp: number;
  readonly precision: 'bf16' | 'fp8';
  readonly kv: 'bf16' | 'fp8';
}

/** Of the memory that weights leave, what an engine keeps for itself is the rest. */
const kvMemoryShare = 0.9;

/** Devices that share each layer. @throws UsageError when the hardware has too few */
export function tensorParallelOf({ hardware, tp, pp }: CostOptions, devices: number): number {
  const tensorParallel = tp ?? Math.floor(devices / pp);
  if (tensorParallel * pp <= devices && tensorParallel >= 1) return tensorParallel;
  throw new UsageError(`Cannot use --tp ${tensorParallel} with --pp ${pp}: ${hardware} has ${devices} devices`);
}

/** @throws UsageError in one line when the tables, the arithmetic or the devices are missing, or the model does not fit */
export function createCostModel(options: CostOptions): StepCostModel {
  const { device, shape } = instanceShape(options);
  if (options.cost === 'table') return new TableCost(measuredKernels(options, readTables(options)), fittedOverheads);
  return rangeErrorsAsUsage(() => new RooflineCost({ ...shape, device, efficiency: statedEfficiency }));
}

/** @throws UsageError when a kernel of the model was not measured, or the devices cannot hold its weights */
export function measuredKernels(options: CostOptions, tables: MeasuredTables): StepKernels {
  const { device, shape } = instanceShape(options);
  return rangeErrorsAsUsage(() => layOutKernels({ ...shape, device, tables }));
}

/** @throws UsageError naming what is missing */
export function readTables(options: CostOptions): MeasuredTables {
  if (options.tables === undefined) throw new UsageError('Cannot use --cost table: name a directory with --tables');
  return readMeasuredTables(options.tables, options);
}

function instanceShape(options: CostOptions) {
  const { hardware, precision } = options;
  const device = hardwareSpec(hardware, options.machines);
  const operationsPerSecond = device.operationsPerSecond[precision];
  if (operationsPerSecond === undefined) {
    throw new UsageError(`Cannot use --precision ${precision}: ${hardware} has no such arithmetic`);
  }
  const shape = {
    model: modelSpec(options.model, options.models),
    tensorParallel: tensorParallelOf(options, device.devices),
    pipelineParallel: options.pp,
    weightBytes: bytesOf(precision),
    kvBytes: bytesOf(options.kv),
    kvMemoryShare,
  };
  return { device: { ...device, operationsPerSecond }, shape };
}

function bytesOf(precision: 'bf16' | 'fp8'): number {
  return precision === 'fp8' ? 1 : 2;
}

function rangeErrorsAsUsage<T>(make: () => T): T {
  try {
    return make();
  } catch (error) {
    throw error instanceof RangeError ? new UsageError(error.message) : error;
  }
}
