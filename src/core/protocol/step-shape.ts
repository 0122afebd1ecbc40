// What the time of an engine step depends on, and who predicts it.

export interface StepShape {
  readonly rows: number;
  /** Sum over rows of the keys each one attends to. */
  readonly keyRows: number;
  /** Sequences that run a single row. */
  readonly decodeRows: number;
  /** Keys that those rows attend to. */
  readonly decodeKeys: number;
  readonly logitRows: number;
}

/** Some layers one after the other: the first, and the first behind them. */
export interface LayerSpan {
  readonly from: number;
  readonly to: number;
}

/** One of so many ranges that the layers are cut into, one after the other. */
export interface LayerRange {
  readonly index: number;
  readonly stages: number;
  /** Undefined: all ranges have as many. */
  readonly span?: LayerSpan | undefined;
}

/** @param layers (stages): how many each has; undefined: as many */
export function rangeAt(index: number, stages: number, layers: readonly number[] | undefined): LayerRange {
  if (layers === undefined) return { index, stages };
  const from = layers.slice(0, index).reduce((sum, each) => sum + each, 0);
  return { index, stages, span: { from, to: from + layers[index] } };
}

/** Whole layers: where they do not come out even the first ranges have one more, since the last computes the head besides. */
export function layersOf(layers: number, { index, stages, span }: LayerRange): number {
  if (span !== undefined) return span.to - span.from;
  return Math.floor(layers / stages) + Number(index < layers % stages);
}

/** Which those are. */
export function layersBetween(layers: number, range: LayerRange): LayerSpan {
  const { index, stages, span } = range;
  if (span !== undefined) return span;
  const from = index * Math.floor(layers / stages) + Math.min(index, layers % stages);
  return { from, to: from + layersOf(layers, range) };
}

/** Predictions are of the step that a batcher is about to plan. */
export interface StepPredictor {
  /** What has been learned, where something is. */
  readonly coefficients?: readonly number[];
  predictUs(shape: StepShape): number;
  /** The same of one range of the layers; the head is the last one's. */
  predictStageUs(shape: StepShape, range: LayerRange): number;
  /** Of all layers, those of the range. */
  layerShare(range: LayerRange): number;
  /** Most prefill rows of one sequence, the first at `position`, that fit into `budgetUs` beside `shape`; infinite while rows seem free. */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number;
  /** Steps took so long: the first of this shape, each next one with the same rows a token further. */
  observe(shape: StepShape, stepUs: ArrayLike<number>): void;
}

/** A step that decodes `rows` sequences with `keys` tokens in all. */
export function decodeShape(rows: number, keys: number): StepShape {
  return { rows, keyRows: keys, decodeRows: rows, decodeKeys: keys, logitRows: rows };
}
