// Theoretical step time: operations over peak rate or bytes over bandwidth, whichever takes longer, at stated
// efficiencies.

import { exactExp, exactLog } from '../../util/exact-math.ts';
import { type LayerRange, layersOf, type SparseWork, type StepShape } from '../protocol/step-shape.ts';
import {
  activationBytesPerToken,
  headParameters,
  heldModel,
  kvBytesPerTokenOf,
  kvCapacity,
  layerParameters,
} from './memory.ts';
import { microBatchedUs, searchRowsWithin } from './micro-batches.ts';
import type { Efficiency, ExpertShape, InstanceShape, ModelShape } from './shapes.ts';

/** Assumed, not fitted: used where no measured table exists. */
export const assumedEfficiency: Efficiency = { compute: 0.6, memory: 0.8, link: 0.7, stepUs: 500, layerUs: 10 };

/** Matrix products of a layer: queries, keys and values; output; gate and up; down. */
const layerProducts = 4;

/** Predicts the steps of one instance in integer microseconds. */
export interface StepCostModel {
  stepUs(shape: StepShape): number;
  /** True: step times contain attention to keys at creditors, and attention for debtors; nothing is added for them. */
  readonly containsRemoteAttention?: boolean | undefined;
  /** Of the latest step, the time before its instance planned it, which the instance does not learn; undefined: none. */
  readonly gapUs?: number | undefined;
  /** Time that selections of kept tokens add to a step; undefined: no layer is sparse. */
  selectionUs?(work: SparseWork): number;
  /** Time of one range of the layers: each of its steps has the overhead of a step, and the last range has the head. */
  stageUs(shape: StepShape, range: LayerRange): number;
  readonly layers: number;
  /**
   * Maximum number of prefill rows of one sequence, the first at `position`, such that the step with `shape` takes at
   * most `budgetUs`, within a microsecond.
   */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  /** Activations between two layers. */
  readonly activationBytesPerToken: number;
}

/**
 * Linear layers: 2 operations for each weight and row, or reading each weight once. Attention: 4 operations for each
 * query head element, key and row, or reading the keys and values of decode rows once (a prefill chunk reads its keys
 * for many rows). Two all-reduces of the rows for each layer (ring: 2 (n-1)/n of the bytes), over several machines
 * within each and then between them. Pipeline stages run micro-batches. Experts are read if at least one row takes them,
 * at the expected number under even routing; the busiest device has `expertImbalance` times the mean.
 */
export class RooflineCost implements StepCostModel {
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly layers: number;
  readonly #overheadUs: number;
  readonly #fixedUs: number;
  readonly #weightsUs: number;
  readonly #headUs: number;
  readonly #rowUs: number;
  readonly #experts: ExpertTimes | undefined;
  readonly #logitRowUs: number;
  readonly #sequenceUs: number;
  readonly #keyRowUs: number;
  readonly #decodeKeyUs: number;
  readonly #reduceUs: number;
  readonly #stages: number;

  /** @throws RangeError when the devices cannot hold the weights or split the heads */
  constructor({ model, device, machine, efficiency, ...parts }: InstanceShape) {
    const { tensorParallel: tp, weightBytes } = parts;
    const held = heldModel(model, tp);
    const { everyRow, experts } = layerParameters(held);
    const headWeights = headParameters(model);
    const { compute, memory, attentionCompute = compute, attentionMemory = memory } = efficiency;
    const operationsPerUs = (device.operationsPerSecond * compute * tp) / 1e6;
    const bytesPerUs = (device.memoryBytesPerSecond * memory * tp) / 1e6;
    // A product of w weights on a device reaches w / (w + shard) of the efficiency: it takes as long as one of w + shard.
    const shards = model.layers * layerProducts * tp;
    const memoryWeights = everyRow + shards * (efficiency.memoryShard ?? 0);
    const computeWeights = everyRow + shards * (efficiency.computeShard ?? 0);
    this.#weightsUs = (memoryWeights * weightBytes) / bytesPerUs;
    this.#headUs = (headWeights * weightBytes) / bytesPerUs;
    this.#rowUs = (2 * computeWeights) / operationsPerUs;
    this.#experts = expertTimes(model.experts, parts.expertImbalance ?? 1, {
      weightsUs: (experts * weightBytes) / bytesPerUs,
      rowUs: (2 * experts) / operationsPerUs,
    });
    this.#logitRowUs = (2 * headWeights) / operationsPerUs;
    this.#sequenceUs = efficiency.sequenceUs ?? 0;
    const keyOperations = keyRowOperations(model);
    const attentionPerUs = (device.operationsPerSecond * attentionCompute * tp) / 1e6;
    this.#keyRowUs = keyOperations.prefill / attentionPerUs;
    const capacity = kvCapacity({ model, device, ...parts });
    this.kvBytesPerToken = capacity.kvBytesPerToken;
    this.kvCapacityTokens = capacity.kvCapacityTokens;
    this.activationBytesPerToken = capacity.activationBytesPerToken;
    // Decode rows are bound by reading keys, prefill rows by arithmetic: different kernels, one after another.
    const keyBytesPerUs = (device.memoryBytesPerSecond * attentionMemory * tp) / 1e6;
    this.#decodeKeyUs = Math.max(
      kvBytesPerTokenOf(held, parts.kvBytes) / keyBytesPerUs,
      keyOperations.decode / attentionPerUs,
    );
    const links = linkTimes({ model, device, machine, efficiency, ...parts });
    this.layers = model.layers;
    this.#stages = parts.pipelineParallel;
    this.#overheadUs = efficiency.stepUs;
    this.#reduceUs = links.rowUs;
    this.#fixedUs = efficiency.stepUs + model.layers * efficiency.layerUs + links.messagesUs;
  }

  stepUs(shape: StepShape): number {
    return Math.max(1, Math.round(this.#us(shape, shape.logitRows)));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return stageOf(shape, range, this.layers, this.#overheadUs, (logitRows) => this.#us(shape, logitRows));
  }

  #us(shape: StepShape, logitRows: number): number {
    if (this.#stages === 1) return this.#layersUs(shape) + this.#headOf(logitRows);
    return microBatchedUs({ ...shape, logitRows }, this.#stages, (part) => ({
      layersUs: this.#layersUs(part),
      headUs: this.#headOf(part.logitRows),
    }));
  }

  /** With few rows, reading the weights bounds the linear layers; with many, arithmetic does. */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    if (this.#stages > 1 || this.#experts !== undefined)
      return searchRowsWithin(budgetUs, shape, position, (step) => this.stepUs(step));
    const left = budgetUs - this.#nonLinearUs(shape) - this.#headOf(shape.logitRows + 1);
    const perKeyUs = this.#keyRowUs;
    // n rows add n position + n (n + 1) / 2 keys.
    const perRowUs = this.#reduceUs + perKeyUs * (position + 1 / 2);
    const byArithmetic = largest(perKeyUs / 2, perRowUs + this.#rowUs, left - shape.rows * this.#rowUs);
    return Math.max(0, Math.min(byArithmetic, largest(perKeyUs / 2, perRowUs, left - this.#weightsUs)));
  }

  #layersUs(shape: StepShape): number {
    const linearUs = Math.max(this.#weightsUs, shape.rows * this.#rowUs);
    return (
      linearUs + (this.#experts === undefined ? 0 : expertsUs(this.#experts, shape.rows)) + this.#nonLinearUs(shape)
    );
  }

  #headOf(logitRows: number): number {
    return logitRows === 0 ? 0 : Math.max(this.#headUs, logitRows * this.#logitRowUs) + logitRows * this.#sequenceUs;
  }

  /** Time of the layers and of the step's overhead, without linear layers. */
  #nonLinearUs({ rows, keyRows, decodeKeys }: StepShape): number {
    const decodeUs = decodeKeys * this.#decodeKeyUs;
    const prefillUs = (keyRows - decodeKeys) * this.#keyRowUs;
    return this.#fixedUs + decodeUs + prefillUs + rows * this.#reduceUs;
  }
}

/** Microseconds of the experts of all layers. */
interface ExpertTimes {
  /** To read all of them. */
  readonly weightsUs: number;
  /** Arithmetic of a row. */
  readonly rowUs: number;
  /** Rows of the busiest device over the mean. */
  readonly imbalance: number;
  /** Logarithm of the share of experts that one row does not take. */
  readonly logOthers: number;
}

function expertTimes(
  experts: ExpertShape | undefined,
  imbalance: number,
  { weightsUs, rowUs }: Pick<ExpertTimes, 'weightsUs' | 'rowUs'>,
): ExpertTimes | undefined {
  if (experts === undefined) return undefined;
  const share = experts.active / experts.count;
  const logOthers = share < 1 ? exactLog(1 - share) : Number.NEGATIVE_INFINITY;
  return { weightsUs, rowUs: rowUs * share * imbalance, imbalance, logOthers };
}

/** Beyond this, all experts are taken to double precision. */
const allTakenLog = -40;

/**
 * Each row takes `active` of `count` experts: an expert is not read with probability (1 - active / count) ** rows. The
 * busiest device reads all of its experts at most.
 */
function expertsUs({ weightsUs, rowUs, imbalance, logOthers }: ExpertTimes, rows: number): number {
  if (rows === 0) return 0;
  const log = rows * logOthers;
  const taken = log < allTakenLog ? 1 : 1 - exactExp(log);
  return Math.max(weightsUs * Math.min(1, taken * imbalance), rows * rowUs);
}

/**
 * Operations of all layers for a row and a key. With latent attention, prefill rows compute with keys and values of
 * each head; decode rows with the latent vectors, which take the place of both.
 */
function keyRowOperations({ layers, heads, headDim, latent }: ModelShape) {
  if (latent === undefined) {
    const both = 4 * layers * heads * headDim;
    return { prefill: both, decode: both };
  }
  const { rank, rotatedDim } = latent;
  return {
    prefill: 2 * layers * heads * (2 * headDim + rotatedDim),
    decode: 2 * layers * heads * (2 * rank + rotatedDim),
  };
}

/**
 * A range's share of the layers' time, with the overhead of a step; the last range adds the head. @param us time of all
 * layers with this many logits
 */
export function stageOf(
  { logitRows }: StepShape,
  range: LayerRange,
  layers: number,
  overheadUs: number,
  us: (logitRows: number) => number,
): number {
  const layersUs = us(0) - overheadUs;
  const headUs = range.index === range.stages - 1 ? us(logitRows) - us(0) : 0;
  return Math.max(1, Math.round(overheadUs + (layersUs * layersOf(layers, range)) / layers + headUs));
}

/**
 * Link time of a row, and of messages: two all-reduces a layer, and activations between stages. With m machines, each
 * device also reduces its share of the bytes with its peers on the other machines (2 (m-1)/m of the bytes over a
 * machine's NICs, 2 log2 m messages).
 */
function linkTimes({ model, device, machine, efficiency, tensorParallel: tp, pipelineParallel: pp }: InstanceShape) {
  const linkBytesPerUs = (device.linkBytesPerSecond * efficiency.link) / 1e6;
  const rowBytes = activationBytesPerToken(model);
  const reduces = 2 * model.layers;
  const devices = machine?.devices ?? tp * pp;
  const inside = Math.min(tp, devices);
  const machines = tp / inside;
  // Stages follow one another over the machines: this many transfers leave a machine.
  const leaving = Math.max(1, (tp * pp) / devices) / machines - 1;
  const staying = pp - 1 - leaving;
  let rowUs = (reduces * ((2 * (inside - 1)) / inside) * rowBytes + staying * rowBytes) / linkBytesPerUs;
  let messagesUs = reduces * (inside > 1 ? device.linkUs + (efficiency.reduceUs ?? 0) : 0) + staying * device.linkUs;
  if (machine === undefined) return { rowUs, messagesUs };
  const nicBytesPerUs = (machine.nicBytesPerSecond * efficiency.link) / 1e6;
  rowUs += (reduces * ((2 * (machines - 1)) / machines) * rowBytes) / nicBytesPerUs;
  rowUs += (leaving * rowBytes) / (nicBytesPerUs * (inside / devices));
  messagesUs += (reduces * 2 * Math.log2(machines) + leaving) * machine.nicUs;
  return { rowUs, messagesUs };
}

/**
 * Largest n with square n^2 + linear n within `limit`; negative when there is none. This form has no cancellation for a
 * small `square`.
 */
function largest(square: number, linear: number, limit: number): number {
  if (limit < 0) return -1;
  return Math.floor((2 * limit) / (linear + Math.sqrt(linear * linear + 4 * square * limit)));
}
