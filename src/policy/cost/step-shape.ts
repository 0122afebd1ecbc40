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

/** Predictions are of the step that a batcher is about to plan. */
export interface StepPredictor {
  /** What has been learned, where something is. */
  readonly coefficients?: readonly number[];
  predictUs(shape: StepShape): number;
  /** Most prefill rows of one sequence, the first at `position`, that fit into `budgetUs` beside `shape`; infinite while rows seem free. */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number;
  /** Steps took so long: the first of this shape, each next one with the same rows a token further. */
  observe(shape: StepShape, stepUs: ArrayLike<number>): void;
}
