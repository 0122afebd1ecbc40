// The features that the time of a step depends on, and the interface of its predictor.

/**
 * What sequences with a KV budget change in a step, summed over sparse layers: `keyRows` and `decodeKeys` of the step
 * count the whole context in each layer.
 */
export interface SparseWork {
  /** Keys that all rows, and decode rows, do not read. */
  readonly skippedKeyRows: number;
  readonly skippedDecodeKeys: number;
  /** Further keys that decode rows do not read in each further step of a run. */
  readonly skippedPerStep: number;
  /** Of prompts that select their kept tokens: pairs of an observed row and a key before it, keys, and kept tokens. */
  readonly scoredKeyRows: number;
  readonly scoredKeys: number;
  readonly keptTokens: number;
}

export interface StepShape {
  readonly rows: number;
  /** Sum over rows of the keys that each one attends to. */
  readonly keyRows: number;
  /** Sequences that run a single row. */
  readonly decodeRows: number;
  /** Keys that those rows attend to. */
  readonly decodeKeys: number;
  readonly logitRows: number;
  /** Undefined: each layer keeps all tokens of every sequence. */
  readonly sparse?: SparseWork | undefined;
}

/** Consecutive layers `from..to`. */
export interface LayerSpan {
  readonly from: number;
  readonly to: number;
}

/** One of the ranges that the layers are divided into. */
export interface LayerRange {
  readonly index: number;
  readonly stages: number;
  /** Undefined: all ranges have the same size. */
  readonly span?: LayerSpan | undefined;
}

/** @param layers (stages): layers of each range; undefined: equal ranges */
export function rangeAt(index: number, stages: number, layers: readonly number[] | undefined): LayerRange {
  if (layers === undefined) return { index, stages };
  const from = layers.slice(0, index).reduce((sum, each) => sum + each, 0);
  return { index, stages, span: { from, to: from + layers[index] } };
}

/**
 * Number of layers. If equal ranges are impossible, the first ones have one layer more, since the last one also
 * computes the head.
 */
export function layersOf(layers: number, { index, stages, span }: LayerRange): number {
  if (span !== undefined) return span.to - span.from;
  return Math.floor(layers / stages) + Number(index < layers % stages);
}

/** The layers of a range. */
export function layersBetween(layers: number, range: LayerRange): LayerSpan {
  const { index, stages, span } = range;
  if (span !== undefined) return span;
  const from = index * Math.floor(layers / stages) + Math.min(index, layers % stages);
  return { from, to: from + layersOf(layers, range) };
}

/** Predicts the step that a batcher is about to plan. */
export interface StepPredictor {
  /** Learned coefficients, if any. */
  readonly coefficients?: readonly number[] | undefined;
  predictUs(shape: StepShape): number;
  /** Time of one range of the layers; the last one includes the head. */
  predictStageUs(shape: StepShape, range: LayerRange): number;
  /** Share of the layers that the range has. */
  layerShare(range: LayerRange): number;
  /**
   * Maximum number of prefill rows of one sequence, the first at `position`, that fit into `budgetUs` beside `shape`;
   * infinite if rows are predicted to take no time.
   */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number;
  /** Learns from measured steps: the first has this shape, each further one the same rows one token later. */
  observe(shape: StepShape, stepUs: ArrayLike<number>): void;
}

/** One of `parts` equal parts of a step; fields may be fractions. */
export function partOf({ rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape, parts: number): StepShape {
  return {
    rows: rows / parts,
    keyRows: keyRows / parts,
    decodeRows: decodeRows / parts,
    decodeKeys: decodeKeys / parts,
    logitRows: logitRows / parts,
  };
}

/** The step with the keys that a layer reads in the mean. Without `sparse` it is the same object. */
export function meanShape(shape: StepShape, layers: number): StepShape {
  const { rows, decodeRows, logitRows, sparse } = shape;
  if (sparse === undefined) return shape;
  const keyRows = shape.keyRows - sparse.skippedKeyRows / layers;
  const decodeKeys = shape.decodeKeys - sparse.skippedDecodeKeys / layers;
  return { rows, keyRows, decodeRows, decodeKeys, logitRows };
}

/** The shape of the `n`-th further step of a run, in which every row decodes. */
export function laterShape(shape: StepShape, n: number): StepShape {
  const { rows, decodeRows, logitRows, sparse } = shape;
  const keyRows = shape.keyRows + n * rows;
  const decodeKeys = shape.decodeKeys + n * decodeRows;
  if (sparse === undefined) return { rows, keyRows, decodeRows, decodeKeys, logitRows };
  const skipped = n * sparse.skippedPerStep;
  const later = {
    ...sparse,
    skippedKeyRows: sparse.skippedKeyRows + skipped,
    skippedDecodeKeys: sparse.skippedDecodeKeys + skipped,
  };
  return { rows, keyRows, decodeRows, decodeKeys, logitRows, sparse: later };
}

/** A step that decodes `rows` sequences with `keys` tokens in all. */
export function decodeShape(rows: number, keys: number): StepShape {
  return { rows, keyRows: keys, decodeRows: rows, decodeKeys: keys, logitRows: rows };
}
