// Step time of an instance with sparse layers, which read kept tokens only and select them once for each prompt.

import { type LayerRange, layersOf, meanShape, type SparseWork, type StepShape } from '../protocol/step-shape.ts';
import { heldModel, kvBytesPerTokenOf, refuseLatent } from './memory.ts';
import type { StepCostModel } from './roofline.ts';
import type { InstanceShape } from './shapes.ts';

/**
 * Attention time of all cost models is linear in keys over layers, so the keys that a layer reads in the mean give the
 * time of all. The bytes that a decode row reads are those of its context in full layers and of the kept tokens in
 * sparse layers.
 */
export class SparseCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #full: StepCostModel;
  readonly #pairUs: number;
  readonly #keyUs: number;
  readonly #copyUs: number;

  /**
   * @param full the same instance without sparse layers
   * @param shape its devices, whose peaks bound selections
   */
  constructor(full: StepCostModel, shape: InstanceShape) {
    const { model, device, efficiency, tensorParallel, kvBytes } = shape;
    refuseLatent(model, 'sparse layers');
    this.#full = full;
    this.layers = full.layers;
    this.kvBytesPerToken = full.kvBytesPerToken;
    this.kvCapacityTokens = full.kvCapacityTokens;
    this.activationBytesPerToken = full.activationBytesPerToken;
    const operationsPerUs = (device.operationsPerSecond * efficiency.compute * tensorParallel) / 1e6;
    const bytesPerUs = (device.memoryBytesPerSecond * efficiency.memory * tensorParallel) / 1e6;
    const layerBytes = kvBytesPerTokenOf(heldModel(model, tensorParallel), kvBytes) / model.layers;
    // A score is the product of a query and a key: attention also weighs values.
    this.#pairUs = (2 * model.heads * model.headDim) / operationsPerUs;
    // Keys without values.
    this.#keyUs = layerBytes / 2 / bytesPerUs;
    // Keys and values, read and written.
    this.#copyUs = (2 * layerBytes) / bytesPerUs;
  }

  stepUs(shape: StepShape): number {
    const { sparse } = shape;
    if (sparse === undefined) return this.#full.stepUs(shape);
    return this.#full.stepUs(meanShape(shape, this.layers)) + Math.round(this.selectionUs(sparse));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    const us = this.#full.stageUs(meanShape(shape, this.layers), range);
    const share = layersOf(this.layers, range) / this.layers;
    return shape.sparse === undefined ? us : us + Math.round(this.selectionUs(shape.sparse) * share);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    const leftUs = shape.sparse === undefined ? budgetUs : budgetUs - this.selectionUs(shape.sparse);
    return this.#full.rowsWithin(leftUs, meanShape(shape, this.layers), position);
  }

  /**
   * Selections score the keys of a prompt of n tokens with its last a rows in a pass of their own, key by key (SnapKV,
   * arXiv 2404.14469): 2 h operations for each of about a n pairs, a/n of the 4 h n^2/2 of causal attention,
   * or reading the keys once. Then the kept tokens are copied.
   */
  selectionUs({ scoredKeyRows, scoredKeys, keptTokens }: SparseWork): number {
    return Math.max(scoredKeyRows * this.#pairUs, scoredKeys * this.#keyUs) + keptTokens * this.#copyUs;
  }
}

/** Pairs of an observed row and a key that it attends to: the last `observed` rows of a prompt, causal. */
export function scoredPairs(promptTokens: number, observed: number): number {
  const rows = Math.min(observed, promptTokens);
  return rows * promptTokens - (rows * (rows - 1)) / 2;
}
