// Step time from measured kernels: tables prepared for one model and number of devices, then a few lookups a step.

import type { LayerRange, StepShape } from '../../protocol/step-shape.ts';
import { kvCapacity, refuseLatent } from '../memory.ts';
import { microBatchedUs, searchRowsWithin } from '../micro-batches.ts';
import { type StepCostModel, stageOf } from '../roofline.ts';
import type { ModelShape } from '../shapes.ts';
import { AttentionTimes, GemmTimes, reduceLine } from './kernel-times.ts';
import type { MeasuredTables } from './measured-tables.ts';

/** Costs outside the kernel tables. */
export interface StepOverheads {
  /** Of each step: scheduling, launch, sampling. */
  readonly stepUs: number;
  /** Of each row with logits: sampling, bookkeeping of its sequence. */
  readonly sequenceUs: number;
  /** Of each layer: norms, rotation, KV writes and activation, even with few rows. */
  readonly layerUs: number;
  /**
   * Kernel time in a server over kernel time alone: for decode steps, and for steps with prefill (clocks fall under
   * load).
   */
  readonly decodeFactor: number;
  readonly prefillFactor: number;
  /**
   * The same for all-reduces: small ones are fused with the following norm, large ones run on newer kernels than those
   * measured.
   */
  readonly decodeReduceFactor: number;
  readonly prefillReduceFactor: number;
}

/** Fitted to vLLM on H100 and H200: see docs/internals/cost-models.md. */
export const fittedOverheads: StepOverheads = {
  stepUs: 1117,
  sequenceUs: 11,
  layerUs: 16.92,
  decodeFactor: 0.98,
  prefillFactor: 1.24,
  decodeReduceFactor: 0.59,
  prefillReduceFactor: 0.84,
};

export interface TableCostConfig {
  readonly model: ModelShape;
  readonly tables: MeasuredTables;
  readonly device: {
    readonly memoryBytes: number;
    readonly memoryBytesPerSecond: number;
    readonly linkBytesPerSecond: number;
    readonly linkUs: number;
  };
  readonly tensorParallel: number;
  readonly pipelineParallel: number;
  readonly weightBytes: number;
  readonly kvBytes: number;
  readonly memoryShare: number;
  readonly stepRows: number;
}

/** Kernel times of one model on a number of devices, prepared for lookups: microseconds over all layers. */
export interface StepKernels {
  readonly layers: number;
  /** Pipeline stages. */
  readonly stages: number;
  /** (rowsMax + 1): products and element-wise kernels; all-reduces and transfers between stages. */
  readonly rowsUs: Float64Array;
  readonly reduceUs: Float64Array;
  /** (logitRowsMax + 1) */
  readonly headUs: Float64Array;
  readonly context: AttentionTimes;
  readonly generation: AttentionTimes;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
}

/** Rows up to which times are tabulated; larger steps are extrapolated. */
const rowsMax = 16_384;
const logitRowsMax = 2_048;
/** Share of memory bandwidth that element-wise kernels reach. */
const elementwiseShare = 0.8;

/** @throws RangeError when the tables lack a kernel of the model, or the devices cannot hold its weights */
export function prepareKernels(config: TableCostConfig): StepKernels {
  const { model, tables, tensorParallel: tp } = config;
  const { name } = tables;
  if (model.headDim !== tables.headDim) {
    throw new RangeError(
      `Cannot time attention: ${name} has heads of ${tables.headDim}: the model has heads of ${model.headDim}`,
    );
  }
  refuseLatent(model, `the measured kernels of ${name}`);
  if (model.experts !== undefined) throw new RangeError(`Cannot time experts: ${name} has no kernels of experts`);
  const memory = kvCapacity(config);
  const heads = Math.ceil(model.heads / tp);
  const kvHeads = Math.ceil(model.kvHeads / tp);
  const gemm = new GemmTimes(tables.gemm, name);
  const head = gemm.line(Math.ceil(model.vocabulary / tp), model.hidden);
  return {
    ...memory,
    layers: model.layers,
    stages: config.pipelineParallel,
    rowsUs: tabulateRows(config, gemm, heads, kvHeads),
    reduceUs: tabulateReduces(config),
    headUs: Float64Array.from({ length: logitRowsMax + 1 }, (_, rows) => (rows === 0 ? 0 : head.at(rows))),
    context: new AttentionTimes(tables.contextAttention, heads, kvHeads, keyRowsOf, name),
    generation: new AttentionTimes(tables.generationAttention, heads, kvHeads, (tokens) => tokens, name),
  };
}

/**
 * Matrix products of each layer (qkv, output, gate and up, down) and two all-reduces by rows; the head by rows with
 * logits. Attention of decode rows by their number and mean keys; attention of prefill rows as equal prompts with the
 * same rows and key-rows.
 */
export class TableCost implements StepCostModel {
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly layers: number;
  readonly #kernels: StepKernels;
  readonly #overheads: StepOverheads;
  readonly #fixedUs: number;

  constructor(kernels: StepKernels, overheads: StepOverheads) {
    this.kvBytesPerToken = kernels.kvBytesPerToken;
    this.kvCapacityTokens = kernels.kvCapacityTokens;
    this.activationBytesPerToken = kernels.activationBytesPerToken;
    this.layers = kernels.layers;
    this.#kernels = kernels;
    this.#overheads = overheads;
    this.#fixedUs = overheads.stepUs + kernels.layers * overheads.layerUs;
  }

  stepUs(shape: StepShape): number {
    return Math.max(1, Math.round(this.#us(shape)));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return stageOf(shape, range, this.layers, this.#overheads.stepUs, (logitRows) => this.#us({ ...shape, logitRows }));
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return searchRowsWithin(budgetUs, shape, position, (step) => this.stepUs(step), rowsMax);
  }

  #us(shape: StepShape): number {
    const { stages } = this.#kernels;
    if (stages === 1) return this.#kernelsUs(shape);
    return microBatchedUs(shape, stages, (part) => {
      const layersUs = this.#kernelsUs({ ...part, logitRows: 0 });
      return { layersUs, headUs: this.#kernelsUs(part) - layersUs };
    });
  }

  #kernelsUs({ rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape): number {
    const { rowsUs, headUs, reduceUs, layers, generation } = this.#kernels;
    const { sequenceUs, decodeFactor, prefillFactor, decodeReduceFactor, prefillReduceFactor } = this.#overheads;
    const prefillRows = rows - decodeRows;
    let attentionUs = decodeRows > 0 ? generation.us(decodeRows, decodeKeys / decodeRows) : 0;
    if (prefillRows > 0) attentionUs += this.#prefillUs(prefillRows, keyRows - decodeKeys);
    const kernelsUs = interpolated(rowsUs, rows) + interpolated(headUs, logitRows) + layers * attentionUs;
    const allReduceUs = interpolated(reduceUs, rows);
    const fixedUs = this.#fixedUs + logitRows * sequenceUs;
    return prefillRows > 0
      ? fixedUs + kernelsUs * prefillFactor + allReduceUs * prefillReduceFactor
      : fixedUs + kernelsUs * decodeFactor + allReduceUs * decodeReduceFactor;
  }

  /**
   * n rows with K key-rows are n / s prompts of s tokens with K key-rows together. A part of a prompt takes its share,
   * and reads all its keys.
   */
  #prefillUs(rows: number, keyRows: number): number {
    const { context, generation } = this.#kernels;
    const tokens = (2 * keyRows) / rows - 1;
    const prompts = rows / tokens;
    if (prompts >= 1) return context.us(prompts, keyRowsOf(tokens));
    return Math.max(context.us(1, keyRowsOf(tokens)) * prompts, generation.us(1, tokens));
  }
}

/** (rowsMax + 1): microseconds of all layers without attention and all-reduce, by rows; never falls. */
function tabulateRows(config: TableCostConfig, gemm: GemmTimes, heads: number, kvHeads: number): Float64Array {
  const { model, device, tensorParallel } = config;
  const { hidden, headDim, gated } = model;
  const width = Math.ceil(model.intermediate / tensorParallel);
  const products = [
    gemm.line((heads + 2 * kvHeads) * headDim, hidden),
    gemm.line(hidden, heads * headDim),
    gemm.line(width * (gated ? 2 : 1), hidden),
    gemm.line(hidden, width),
  ];
  // Norms read and write the row and its residual twice; queries, keys and values are read and written once; the inner
  // row of the MLP is read, and half of it written.
  const rowBytes = 2 * (8 * hidden + 2 * (heads + 2 * kvHeads) * headDim + (gated ? 3 : 2) * width);
  const elementwiseUs = (rowBytes / (device.memoryBytesPerSecond * elementwiseShare)) * 1e6;
  return Float64Array.from({ length: rowsMax + 1 }, (_, rows) => {
    let us = rows * elementwiseUs;
    for (const product of products) us += product.at(rows);
    return us * model.layers;
  });
}

/** (rowsMax + 1): two all-reduces of the rows for each layer, and their transfer between stages; never falls. */
function tabulateReduces({ model, tables, device, tensorParallel, pipelineParallel }: TableCostConfig): Float64Array {
  const rowBytes = 2 * model.hidden;
  const reduceUs = tensorParallel > 1 ? reduceTimes(tables, tensorParallel) : () => 0;
  const sendUs = (bytes: number) => device.linkUs + (bytes / device.linkBytesPerSecond) * 1e6;
  return Float64Array.from(
    { length: rowsMax + 1 },
    (_, rows) => 2 * model.layers * reduceUs(rows * rowBytes) + (pipelineParallel - 1) * sendUs(rows * rowBytes),
  );
}

/** The faster of the engine's own kernel and the collective library, by bytes. */
function reduceTimes({ allReduce, name }: MeasuredTables, devices: number): (bytes: number) => number {
  const lines = [reduceLine(allReduce.engine, devices, name), reduceLine(allReduce.library, devices, name)];
  return (bytes) => Math.min(...lines.map((line) => line.at(bytes)));
}

function keyRowsOf(tokens: number): number {
  return (tokens * (tokens + 1)) / 2;
}

/** Linear between whole rows, which mean chunks require; beyond the end, extrapolated from the last half. */
function interpolated(us: Float64Array, rows: number): number {
  const last = us.length - 1;
  if (rows >= last) return us[last] + ((rows - last) * (us[last] - us[last >> 1])) / (last - (last >> 1));
  const whole = Math.floor(rows);
  return whole === rows ? us[whole] : us[whole] + (us[whole + 1] - us[whole]) * (rows - whole);
}
