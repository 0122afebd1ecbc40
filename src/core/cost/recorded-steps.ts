// Replays a run with the step times of another run.

import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import type { TimedStep } from './linear-cost.ts';
import type { StepCostModel } from './roofline.ts';

/** A recorded step, on a clock that both runs share. */
export interface RecordedStep extends TimedStep {
  readonly startedUs: number;
  /** Of `us`, the time before the step was planned; undefined: none. */
  readonly gapUs?: number | undefined;
}

/** Maximum gap between two steps of a busy instance, unless given. */
const gapUsDefault = 2000;
/** A step that starts later than its record is shortened to catch up, by at most this share of its time. */
const catchUpMax = 1 / 2;

/**
 * A step with the rows of a recorded one ends when that one ended. Other steps take the model's time, scaled by the
 * deviation of the step recorded at that time. Thus two runs that diverge for a while converge again.
 */
export class RecordedSteps<Step extends RecordedStep = RecordedStep> implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  /** Recorded times are those of whole steps. */
  readonly containsRemoteAttention = true;
  readonly #model: StepCostModel;
  readonly #unrecorded: StepCostModel;
  readonly #nowUs: () => number;
  readonly #steps: readonly Step[];
  readonly #gapUsMax: number;
  /** (steps): 1: the step has matched. */
  readonly #matched: Uint8Array;
  /** Index of the first step that may still match. */
  #from = 0;
  /** Number of steps that matched a recorded one. */
  matched = 0;
  /** The recorded step that matched the latest step, and the step before it; undefined: none. */
  latest: Step | undefined;
  previous: Step | undefined;
  gapUs = 0;
  /** Gaps over all times. */
  readonly #gapShare: number;
  /** Start of the latest step. */
  beganUs: number | undefined;

  /**
   * @param steps in order, without overlap
   * @param unrecorded times of steps near which none was recorded; undefined: the times of the model
   * @param gapUsMax a step matches a recorded one that starts at most so much later or has ended so long ago
   */
  constructor(
    steps: readonly Step[],
    model: StepCostModel,
    nowUs: () => number,
    {
      gapUsMax = gapUsDefault,
      unrecorded = model,
    }: { readonly gapUsMax?: number; readonly unrecorded?: StepCostModel } = {},
  ) {
    this.#steps = steps;
    const sum = (of: (step: Step) => number) => steps.reduce((total, step) => total + of(step), 0);
    this.#gapShare =
      sum(({ gapUs = 0 }) => gapUs) /
      Math.max(
        1,
        sum(({ us }) => us),
      );
    this.#unrecorded = unrecorded;
    this.#gapUsMax = gapUsMax;
    this.#matched = new Uint8Array(steps.length);
    this.#nowUs = nowUs;
    this.#model = model;
    this.layers = model.layers;
    this.kvBytesPerToken = model.kvBytesPerToken;
    this.kvCapacityTokens = model.kvCapacityTokens;
    this.activationBytesPerToken = model.activationBytesPerToken;
  }

  stepUs(shape: StepShape): number {
    const us = this.#stepUs(shape);
    const { latest } = this;
    // A matched step is learned with its recorded time, even if it began earlier or later than that one.
    this.gapUs =
      latest === undefined
        ? Math.round(Math.min(us - 1, us * this.#gapShare))
        : us - Math.max(1, Math.round(latest.us - (latest.gapUs ?? 0)));
    return us;
  }

  #stepUs(shape: StepShape): number {
    const nowUs = this.#nowUs();
    this.previous = this.latest;
    this.latest = undefined;
    this.beganUs = nowUs;
    while (this.#from < this.#steps.length && this.#isOver(this.#steps[this.#from], nowUs)) this.#from++;
    let current: RecordedStep | undefined;
    for (let i = this.#from; i < this.#steps.length && this.#isNear(this.#steps[i], nowUs); i++) {
      if (current === undefined || this.#steps[i].startedUs <= nowUs) current = this.#steps[i];
      if (this.#matched[i] === 1 || !isLike(this.#steps[i].shape, shape)) continue;
      this.#matched[i] = 1;
      this.matched++;
      this.latest = this.#steps[i];
      const { startedUs, us } = this.#steps[i];
      return Math.max(1, Math.round(Math.max(us * catchUpMax, startedUs + us - nowUs)));
    }
    return current === undefined ? this.#unrecorded.stepUs(shape) : this.#scaled(current, shape, nowUs);
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return this.#model.stageUs(shape, range);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#model.rowsWithin(budgetUs, shape, position);
  }

  /** The step ended too long ago to match a step that starts now. */
  #isOver({ startedUs, us }: RecordedStep, nowUs: number): boolean {
    return startedUs + 2 * us + this.#gapUsMax < nowUs;
  }

  /** The step has started, or starts soon. */
  #isNear({ startedUs, us }: RecordedStep, nowUs: number): boolean {
    return startedUs <= nowUs + us + this.#gapUsMax;
  }

  /** A pause of the recorded step is added independent of the rows, and ends when that pause ended. */
  #scaled({ shape: recorded, startedUs, us }: RecordedStep, shape: StepShape, nowUs: number): number {
    const [here, there] = [this.#model.stepUs(shape), this.#model.stepUs(recorded)];
    const scaled = (here * us) / there;
    if (us <= there) return Math.max(1, Math.round(scaled));
    const heldUs = Math.min(us - there, Math.max(0, startedUs + us - nowUs));
    return Math.max(1, Math.round(Math.min(scaled, here + heldUs)));
  }
}

function isLike(a: StepShape, b: StepShape): boolean {
  return a.rows === b.rows && a.keyRows === b.keyRows && a.decodeRows === b.decodeRows;
}
