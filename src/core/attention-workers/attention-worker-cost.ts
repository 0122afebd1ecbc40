// Step time of model workers and attention workers (Lamina, section 4): the model part, the attention part, their messages,
// and staggered batches that overlap them.

import {
  activeParameters,
  headParameters,
  kvBytesPerTokenOf,
  layerParameters,
  parameters,
  refuseLatent,
} from '../cost/memory.ts';
import { searchRowsWithin } from '../cost/micro-batches.ts';
import { RooflineCost, type StepCostModel, stageOf } from '../cost/roofline.ts';
import type { DeviceShape, InstanceShape } from '../cost/shapes.ts';
import { type LayerRange, partOf, type StepShape } from '../protocol/step-shape.ts';
import type { KvPartition } from './choose-worker.ts';
import { replicasFor } from './rotation.ts';

/** Messages between a model worker and its attention workers. */
export interface WorkerNetwork {
  /** From the sender's memory to the receiver's, one way. */
  readonly messageUs: number;
  /** Of one NIC in one direction, as measured. */
  readonly bytesPerSecond: number;
  /** NICs of one model replica, and of all attention workers. */
  readonly replicaNics: number;
  readonly attentionNics: number;
}

export interface AttentionWorkersShape {
  /** One replica of the model. `memoryShare` and `kvBytes` hold for attention workers as well. */
  readonly replica: InstanceShape;
  /** One device. */
  readonly attentionDevice: DeviceShape;
  readonly attentionWorkers: number;
  readonly partition: KvPartition;
  readonly network: WorkerNetwork;
  /**
   * Memory bandwidth that all replicas and attention workers share, in bytes per second: they are threads of one
   * machine. Undefined: each device has a memory of its own.
   */
  readonly sharedBytesPerSecond?: number | undefined;
  /** Batches n in flight; `replicasFor(n)` replicas compute them in rotation. */
  readonly batches: number;
}

/** Microseconds of one batch over all layers, and of a step of all batches. */
export interface StepParts {
  readonly modelUs: number;
  readonly attentionUs: number;
  /** Messages of a batch that no computation of the batch hides. */
  readonly networkUs: number;
  readonly stepUs: number;
}

/** Assumed bytes per number of Q, K, V and attention results on the wire. */
const wireBytes = 2;

/**
 * The rows of a step are divided into n batches. A batch runs its model part, its attention part and two messages a layer
 * one after another; meanwhile the replicas and the attention workers compute the other batches. So a step, in which
 * every sequence advances once, takes the longest of
 *
 * - one batch: t_m + t_a + t_n;
 * - the attention workers, which compute all batches: n t_a;
 * - the replicas: n / (n - 1) t_m;
 * - the NICs: the bytes of all batches;
 * - the memory, if they share one: the weights once for each batch, and all KV.
 *
 * The first two and the third are equal at t_a = t_m / (n - 1) without a network. The layers interleave, so filling
 * and draining take one layer, which is not charged. The overhead of a step and of its layers counts as model part.
 */
export class AttentionWorkersCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #shape: AttentionWorkersShape;
  readonly #model: RooflineCost;
  readonly #decodeKeyUs: number;
  readonly #keyRowUs: number;
  /** Bytes of the weights that a batch reads. */
  readonly #weightBytes: number;

  /** @throws RangeError when a replica cannot hold the weights, or the workers cannot split the KV heads */
  constructor(shape: AttentionWorkersShape) {
    const { replica, attentionDevice: device, attentionWorkers: workers } = shape;
    const { model, efficiency, kvBytes, weightBytes } = replica;
    refuseLatent(model, 'attention workers');
    if (shape.partition === 'heads' && model.kvHeads % workers !== 0)
      throw new RangeError(
        `Cannot split ${model.kvHeads} KV heads over ${workers} attention workers: use a divisor of ${model.kvHeads}, or partition by requests`,
      );
    this.#shape = shape;
    this.#model = new RooflineCost(replica);
    this.layers = model.layers;
    this.activationBytesPerToken = this.#model.activationBytesPerToken;
    this.kvBytesPerToken = kvBytesPerTokenOf(model, kvBytes);
    const kvMemory = workers * device.memoryBytes * replica.memoryShare;
    this.kvCapacityTokens = Math.floor(kvMemory / this.kvBytesPerToken);
    const bytesPerUs = (workers * device.memoryBytesPerSecond * efficiency.memory) / 1e6;
    const operationsPerUs = (workers * device.operationsPerSecond * efficiency.compute) / 1e6;
    this.#decodeKeyUs = this.kvBytesPerToken / bytesPerUs;
    this.#keyRowUs = (4 * model.layers * model.heads * model.headDim) / operationsPerUs;
    const { everyRow, experts } = layerParameters(model);
    this.#weightBytes = (everyRow + experts + headParameters(model)) * weightBytes;
  }

  /** Bytes of a row over all layers: Q to the attention workers, K and V, and the result. */
  get rowBytes(): { readonly query: number; readonly keysAndValues: number; readonly result: number } {
    const { layers, heads, kvHeads, headDim } = this.#shape.replica.model;
    const query = wireBytes * layers * heads * headDim;
    return { query, keysAndValues: (2 * query * kvHeads) / heads, result: query };
  }

  parts(shape: StepShape): StepParts {
    const { batches } = this.#shape;
    const used = Math.max(1, Math.min(batches, shape.rows));
    const batch = partOf(shape, used);
    const modelUs = this.#model.stepUs({ ...batch, keyRows: 0, decodeKeys: 0 });
    const attentionUs =
      batch.decodeKeys * Math.max(this.#decodeKeyUs, this.#keyRowUs) +
      (batch.keyRows - batch.decodeKeys) * this.#keyRowUs;
    const { networkUs, nicUs } = this.#network(batch.rows, attentionUs);
    const replicas = replicasFor(batches);
    const oneUs = modelUs + attentionUs + networkUs;
    const memoryUs = used * this.#sharedMemoryUs(batch);
    const stepUs = Math.max(oneUs, used * attentionUs, (used * modelUs) / replicas, used * nicUs, memoryUs);
    return { modelUs, attentionUs, networkUs, stepUs };
  }

  stepUs(shape: StepShape): number {
    return Math.max(1, Math.round(this.parts(shape).stepUs));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    const { stepUs } = this.#shape.replica.efficiency;
    return stageOf(shape, range, this.layers, stepUs, (logitRows) => this.parts({ ...shape, logitRows }).stepUs);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return searchRowsWithin(budgetUs, shape, position, (step) => this.stepUs(step));
  }

  /**
   * Bandwidth of each NIC in bytes per second at which the bytes of a batch add the share `alpha` to its model part and
   * attention part (Lamina, section 3: minimum bandwidth).
   */
  bytesPerSecondMin(shape: StepShape, alpha: number): number {
    const { modelUs, attentionUs } = this.parts(shape);
    const used = Math.max(1, Math.min(this.#shape.batches, shape.rows));
    const { query, keysAndValues, result } = this.rowBytes;
    const bytes = (shape.rows / used) * (query + keysAndValues + result);
    return (bytes * 1e6) / (alpha * (modelUs + attentionUs)) / this.#nics;
  }

  /**
   * Share of the model devices' peak arithmetic in the model part of a batch, and share of the attention devices' peak
   * bandwidth in its attention part (MFU and MBU; Lamina, figures 2 and 3).
   */
  utilisation(shape: StepShape): { readonly modelFlops: number; readonly attentionBandwidth: number } {
    const { replica, attentionDevice, attentionWorkers, batches } = this.#shape;
    const { modelUs, attentionUs } = this.parts(shape);
    const used = Math.max(1, Math.min(batches, shape.rows));
    const { model } = replica;
    const weights = model.experts === undefined ? parameters(model) : activeParameters(model);
    const operations = (2 * weights * shape.rows) / used;
    const modelPeak = (replica.device.operationsPerSecond * replica.tensorParallel) / 1e6;
    const bytes = (this.kvBytesPerToken * shape.decodeKeys) / used;
    const attentionPeak = (attentionDevice.memoryBytesPerSecond * attentionWorkers) / 1e6;
    return {
      modelFlops: operations / (modelUs * modelPeak),
      attentionBandwidth: bytes / (attentionUs * attentionPeak),
    };
  }

  #sharedMemoryUs({ decodeKeys }: StepShape): number {
    const { sharedBytesPerSecond } = this.#shape;
    if (sharedBytesPerSecond === undefined) return 0;
    return ((this.#weightBytes + decodeKeys * this.kvBytesPerToken) * 1e6) / sharedBytesPerSecond;
  }

  /** NICs that carry the messages of a batch at a time. */
  get #nics(): number {
    const { replicaNics, attentionNics } = this.#shape.network;
    return Math.min(replicaNics, attentionNics);
  }

  /** Times of a batch's messages, and of its bytes at the side with fewer NICs. */
  #network(rows: number, attentionUs: number): { readonly networkUs: number; readonly nicUs: number } {
    const { network, batches } = this.#shape;
    const { query, keysAndValues, result } = this.rowBytes;
    const bytesPerUs = (network.bytesPerSecond * this.#nics) / 1e6;
    // K and V travel while the attention workers compute the earlier keys.
    const exposedUs = Math.max(0, (rows * keysAndValues) / bytesPerUs - attentionUs);
    const networkUs = this.layers * 2 * network.messageUs + (rows * (query + result)) / bytesPerUs + exposedUs;
    // All batches share the NICs of the attention workers; each replica has its own.
    const sharedNics = Math.min(network.attentionNics, network.replicaNics * replicasFor(batches));
    const perUs = (network.bytesPerSecond * sharedNics) / 1e6;
    // Each direction has the full bandwidth.
    return { networkUs, nicUs: (rows * Math.max(query + keysAndValues, result)) / perUs };
  }
}
