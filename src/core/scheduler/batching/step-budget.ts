// The step budget: the rows, rows with logits and predicted time that a step may still contain.
import { laterShape, type StepPredictor, type StepShape } from '../../protocol/step-shape.ts';
import type { BatchingRule } from './batching-order.ts';
import type { Sequence } from './sequence.ts';
import { addSparseRows, hasSparseRows, noSparseWork, type SparseSums } from './sparse-rows.ts';

type PlannedShape = { -readonly [Field in Exclude<keyof StepShape, 'sparse'>]: number } & {
  sparse: SparseSums | undefined;
};

/** Memory and time that batch jobs may take of an instance beside online requests. */
export interface BackgroundLimits {
  /** Maximum share of all pages that batch jobs hold together; a single one may hold more. */
  readonly memoryShare: number;
  /** Maximum predicted time of a step of batch jobs alone, and thus the wait of an online request. */
  readonly stepUs: number;
  /** Share of a step's predicted time that rows of batch jobs may add to it. */
  readonly timeShare: number;
}

export const backgroundLimits: BackgroundLimits = { memoryShare: 0.2, stepUs: 50_000, timeShare: 0.01 };

export interface BatchLimits {
  /** Maximum rows of a step: the engine's buffers. */
  readonly tokensMax: number;
  /** Maximum rows with logits of a step: more than `sequencesMax`; the surplus serves prompt log-probabilities. */
  readonly logitRowsMax: number;
  /** Maximum number of running sequences; at least a block below `tokensMax`. */
  readonly sequencesMax: number;
  /** Scored rows of a step; default: few, because each computes logits. */
  readonly scoredRows?: number;
  /** Maximum predicted time of a step, with and without decode rows beside the prefill. */
  readonly stepUsDecoding: number;
  readonly stepUsPrefill: number;
  /** Maximum predicted time of a step of one prompt while no other online request runs or waits; default: `stepUsPrefill`. */
  readonly stepUsAlone?: number;
  /** Limits of batch jobs. */
  readonly background?: BackgroundLimits;
  /** Which of the waiting sequences of one priority starts first; undefined: `tokens`. */
  readonly order?: BatchingRule | undefined;
}

/** Maximum rows of a step that score prompts: each costs a pass over the vocabulary. */
export const scoredRowsMax = 64;
/** A chunk may exceed its time by this factor if it ends its prompt: a second step for a few rows would cost more. */
const endSlack = 1.25;
/** If decode alone exceeds the budget, prefill may still add this share of its time. */
const prefillShareMin = 0.5;

/** Maximum number of repeated steps of batch jobs alone. */
const steadyMax = 512;

/** Predicted time up to which prefill joins a step whose decode rows alone take `decodeUs`. */
export function stepUsBeside(stepUsDecoding: number, decodeUs: number): number {
  return Math.max(stepUsDecoding, decodeUs * (1 + prefillShareMin));
}

/**
 * Predicted time of a step of prefill alone while other work waits for its end. A short step ends the wait sooner; below
 * this time it costs the device more than the other work gains.
 */
export function shortPrefillUs({ stepUsDecoding, stepUsPrefill }: BatchLimits): number {
  return Math.min(stepUsPrefill, 2 * stepUsDecoding);
}

/** What a step's prefill runs beside. */
export interface StepCompany {
  /** Work of other components waits for the end of the step. */
  readonly keepsShort: boolean;
  /** At most one online request runs or waits. */
  readonly alone: boolean;
}

/** Counts rows as they are planned. */
export class StepBudget {
  readonly #limits: BatchLimits;
  readonly #cost: StepPredictor;
  readonly #blockTokens: number;
  readonly #shape: PlannedShape = {
    rows: 0,
    keyRows: 0,
    decodeRows: 0,
    decodeKeys: 0,
    logitRows: 0,
    sparse: undefined,
  };
  #scored = 0;
  #us = 0;

  /** @param blockTokens tokens of a page, and rows that a prefill may always take */
  constructor(limits: BatchLimits, cost: StepPredictor, blockTokens: number) {
    const { tokensMax, logitRowsMax, sequencesMax } = limits;
    if (sequencesMax < 1 || sequencesMax + blockTokens > tokensMax || sequencesMax >= logitRowsMax) {
      throw new RangeError(
        `Cannot batch: ${sequencesMax} sequences require ${sequencesMax + blockTokens} rows and ${sequencesMax + 1} with logits: ${tokensMax} and ${logitRowsMax} given`,
      );
    }
    this.#limits = limits;
    this.#cost = cost;
    this.#blockTokens = blockTokens;
  }

  get shape(): StepShape {
    return this.#shape;
  }

  /** Rows left. */
  get rows(): number {
    return this.#limits.tokensMax - this.#shape.rows;
  }

  reset(): void {
    const shape = this.#shape;
    shape.rows = 0;
    shape.keyRows = 0;
    shape.decodeRows = 0;
    shape.decodeKeys = 0;
    shape.logitRows = 0;
    shape.sparse = undefined;
    this.#scored = 0;
  }

  /** All decode rows are planned: sets the time that prefill may fill. */
  endDecode({ keepsShort, alone }: StepCompany): void {
    const { stepUsDecoding, stepUsPrefill, stepUsAlone = stepUsPrefill } = this.#limits;
    if (this.#shape.decodeRows === 0 && keepsShort) this.#us = shortPrefillUs(this.#limits);
    else if (this.#shape.decodeRows === 0) this.#us = alone ? stepUsAlone : stepUsPrefill;
    else this.#us = stepUsBeside(stepUsDecoding, this.#cost.predictUs(this.#shape));
  }

  /**
   * Rows that the sequence's prefill may take now. With `atLeastBlock` it may exceed the time by up to a block, so that
   * it progresses.
   */
  rowsFor(sequence: Sequence, atLeastBlock: boolean): number {
    const { plannable: remaining, computed, arriving, observedFrom = computed + 1 } = sequence;
    const us = this.#shape.rows === 0 ? Math.max(this.#us, arriving?.arrivalUs ?? 0) : this.#us;
    let byTime = this.#cost.rowsWithin(us, this.#shape, computed);
    if (byTime < remaining && this.#cost.rowsWithin(us * endSlack, this.#shape, computed) >= remaining) {
      byTime = remaining;
    }
    // The rows that select the kept tokens of a prompt are computed together.
    const least = observedFrom <= computed ? remaining : this.#blockTokens;
    return Math.min(this.rows, remaining, atLeastBlock ? Math.max(byTime, least) : byTime);
  }

  /** All online rows are planned: sets the time that batch jobs may fill. */
  beginBackground({ stepUs, timeShare }: BackgroundLimits): void {
    this.#us = this.#shape.rows === 0 ? stepUs : this.#cost.predictUs(this.#shape) * (1 + timeShare);
  }

  /** True if there is time for another row. */
  get hasTime(): boolean {
    return this.rows > 0 && (this.#shape.rows === 0 || this.#cost.predictUs(this.#shape) < this.#us);
  }

  /** Rows that a batch job may take now; at least one if nothing else runs, so that it progresses. */
  backgroundRowsFor(sequence: Sequence): number {
    const { plannable: remaining, computed, observedFrom = computed + 1 } = sequence;
    const alone = observedFrom <= computed && !sequence.isSelected ? remaining : 1;
    const least = this.#shape.rows === 0 ? alone : 0;
    const byTime =
      remaining === 1
        ? Number(this.#timeWith(computed + 1) <= this.#us)
        : this.#cost.rowsWithin(this.#us, this.#shape, computed);
    const rows = Math.max(least, Math.min(remaining, this.rows, byTime));
    return Math.min(rows, this.scorableRows(sequence));
  }

  /** Predicted time of the step with one more decode row. */
  #timeWith(keys: number): number {
    const { rows, keyRows, decodeRows, decodeKeys, logitRows, sparse } = this.#shape;
    if (this.rows === 0) return Number.POSITIVE_INFINITY;
    return this.#cost.predictUs({
      rows: rows + 1,
      keyRows: keyRows + keys,
      decodeRows: decodeRows + 1,
      decodeKeys: decodeKeys + keys,
      logitRows: logitRows + 1,
      sparse,
    });
  }

  /** How many steps can repeat these rows, all decode rows of batch jobs, each within their time. */
  steadyBackground(): number {
    let steps = steadyMax;
    for (; steps > 1; steps >>= 1) if (this.#cost.predictUs(laterShape(this.#shape, steps - 1)) <= this.#us) break;
    return steps;
  }

  /** Rows that the sequence may take before too many rows score its prompt; infinite for most sequences. */
  scorableRows(sequence: Sequence): number {
    if (!sequence.scoring) return Number.POSITIVE_INFINITY;
    const { logitRowsMax, sequencesMax, scoredRows = scoredRowsMax } = this.#limits;
    const left = Math.min(scoredRows, logitRowsMax - sequencesMax) - this.#scored;
    const rows = sequence.scoredRowsFrom - sequence.computed + left;
    // Rows after the scored ones add no scored row.
    return rows >= sequence.scoredTo - sequence.computed ? Number.POSITIVE_INFINITY : rows;
  }

  /** Adds the sequence's `planned` rows to the step. */
  take(sequence: Sequence): void {
    this.#count(sequence, 1);
  }

  /** Removes them again: the sequence is preempted. */
  untake(sequence: Sequence): void {
    this.#count(sequence, -1);
  }

  #count(sequence: Sequence, times: 1 | -1): void {
    const n = sequence.planned;
    const shape = this.#shape;
    shape.rows += times * n;
    shape.keyRows += times * (n * sequence.computed + (n * (n + 1)) / 2);
    if (n === 1) {
      shape.decodeRows += times;
      shape.decodeKeys += times * (sequence.computed + 1);
    }
    shape.logitRows += times * (sequence.scoredRows + (sequence.samplesNow ? 1 : 0));
    this.#scored += times * sequence.scoredRows;
    if (!hasSparseRows(sequence)) return;
    shape.sparse ??= noSparseWork();
    addSparseRows(shape.sparse, sequence, times, this.#blockTokens);
  }
}
