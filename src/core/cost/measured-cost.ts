// A cost model from measured steps: fitted times of decode steps and of steps with prompts, and the deviations of real
// steps from them.
import { counterUniform } from '../../util/counter-random.ts';
import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import { fitLinearCost, type KvSizes, LinearCost, type LinearTimes, type TimedStep } from './linear-cost.ts';
import type { StepCostModel } from './roofline.ts';

export interface MeasuredStep extends TimedStep {
  /** Duration that clients observe: near zero if the report of the step before was late. */
  readonly observedUs: number;
  /** True if another instance computed on the machine most of the time. */
  readonly beside: boolean;
}

export interface MeasuredKind {
  readonly times: LinearTimes;
  /** Steps that had the machine to themselves, in order. */
  readonly alone: ObservedSteps;
  /** Steps that shared it, in order. */
  readonly beside: ObservedSteps;
}

/** (steps) */
export interface ObservedSteps {
  /** Observed over fitted time, at most `ratioMax`. */
  readonly ratios: Float64Array;
  /** Observed time beyond that: a pause, independent of the rows. */
  readonly pauseUs: Float64Array;
}

/** Slow-down of two processes that share a core; a step with a larger ratio has paused. */
const ratioMax = 2;

/** Kernels for few rows differ from kernels for many, so each kind has its own times. */
export interface MeasuredSteps {
  /** Steps in which every sequence runs one row. */
  readonly decode: MeasuredKind;
  /** Steps with prompt rows, with or without decode rows. */
  readonly prompt: MeasuredKind;
}

/** Slow steps occur in sequence: this number of consecutive deviations is drawn together. */
const stretchSteps = 16;

/**
 * @param graded steps of many shapes, to fit times
 * @param typical consecutive steps under load, to fit variation
 * @throws RangeError without steps of a kind
 */
export function measureSteps(graded: readonly MeasuredStep[], typical: readonly MeasuredStep[]): MeasuredSteps {
  const kind = (decodes: boolean, names?: readonly (keyof LinearTimes)[]): MeasuredKind => {
    const [shapes, load] = [graded, typical].map((steps) => steps.filter(({ shape }) => isDecode(shape) === decodes));
    return measureKind([...shapes, ...load], load.length > 0 ? load : shapes, names);
  };
  // In a decode step, decode rows and rows with logits are proportional to rows.
  return { decode: kind(true, ['stepUs', 'rowUs', 'keyUs']), prompt: kind(false) };
}

/** Times fitted to `steps`, and the deviations of `typical` ones. @throws RangeError without steps */
export function measureKind(
  steps: readonly MeasuredStep[],
  typical: readonly MeasuredStep[],
  names?: readonly (keyof LinearTimes)[],
): MeasuredKind {
  const times = fitLinearCost(steps, names);
  return { times, ...ratiosOf(typical, times) };
}

function ratiosOf(steps: readonly MeasuredStep[], times: LinearTimes): Pick<MeasuredKind, 'alone' | 'beside'> {
  const fitted = new LinearCost(times, noSizes);
  const observed = (beside: boolean): ObservedSteps => {
    const chosen = steps.filter((step) => step.beside === beside);
    const ratios = Float64Array.from(chosen, ({ shape, observedUs: seenUs }) =>
      Math.min(ratioMax, seenUs / fitted.stepUs(shape)),
    );
    const pauseUs = Float64Array.from(chosen, ({ shape, observedUs: seenUs }) =>
      Math.max(0, seenUs - ratioMax * fitted.stepUs(shape)),
    );
    return { ratios, pauseUs };
  };
  return { alone: observed(false), beside: observed(true) };
}

const noSizes: KvSizes = { layers: 1, kvBytesPerToken: 0, kvCapacityTokens: 0, activationBytesPerToken: 0 };

function isDecode({ rows, decodeRows }: StepShape): boolean {
  return rows === decodeRows;
}

export interface Variation {
  readonly seed: number;
  /** True while another instance computes on the machine. */
  readonly beside: () => boolean;
}

/**
 * Steps vary as observed: the model draws stretches of observed ratios at random positions (moving blocks, Künsch
 * 1989). TBT is a mean of a request's longest gaps; without variation all gaps would be equal and too short.
 */
export class MeasuredCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  /** Measured times are those of whole steps. */
  readonly containsRemoteAttention = true;
  readonly #decode: Kind;
  readonly #prompt: Kind;
  readonly #variation: Variation | undefined;

  /** @param variation undefined: every step takes the fitted time */
  constructor({ decode, prompt }: MeasuredSteps, sizes: KvSizes, variation?: Variation) {
    this.layers = sizes.layers;
    this.kvBytesPerToken = sizes.kvBytesPerToken;
    this.kvCapacityTokens = sizes.kvCapacityTokens;
    this.activationBytesPerToken = sizes.activationBytesPerToken;
    this.#variation = variation;
    const seed = variation?.seed ?? 0;
    this.#decode = kindOf(decode, sizes, [seed, 0]);
    this.#prompt = kindOf(prompt, sizes, [seed, 2]);
  }

  stepUs(shape: StepShape): number {
    const { cost, alone, beside } = this.#kindOf(shape);
    if (this.#variation === undefined) return cost.stepUs(shape);
    const { ratio, pauseUs } = this.#variation.beside() ? beside.next() : alone.next();
    return Math.max(1, Math.round(cost.stepUs(shape) * ratio + pauseUs));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return this.#kindOf(shape).cost.stageUs(shape, range);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#prompt.cost.rowsWithin(budgetUs, shape, position);
  }

  #kindOf(shape: StepShape): Kind {
    return isDecode(shape) ? this.#decode : this.#prompt;
  }
}

interface Kind {
  readonly cost: LinearCost;
  readonly alone: DrawnSteps;
  readonly beside: DrawnSteps;
}

/** If no step was observed alone, or none beside others, one kind stands for the other. */
function kindOf({ times, alone, beside }: MeasuredKind, sizes: KvSizes, [seed, stream]: [number, number]): Kind {
  return {
    cost: new LinearCost(times, sizes),
    alone: new DrawnSteps(alone.ratios.length > 0 ? alone : beside, seed, stream),
    beside: new DrawnSteps(beside.ratios.length > 0 ? beside : alone, seed, stream + 1),
  };
}

class DrawnSteps {
  readonly #observed: ObservedSteps;
  readonly #positions: MovingBlocks;

  constructor(observed: ObservedSteps, seed: number, stream: number) {
    this.#observed = observed;
    this.#positions = new MovingBlocks(observed.ratios.length, seed, stream);
  }

  next(): { readonly ratio: number; readonly pauseUs: number } {
    const position = this.#positions.next();
    return { ratio: this.#observed.ratios[position], pauseUs: this.#observed.pauseUs[position] };
  }
}

/**
 * Positions in a series, in stretches of consecutive ones (moving-block bootstrap). A pure function of (length, seed,
 * stream, number of draws).
 */
export class MovingBlocks {
  readonly #length: number;
  readonly #seed: number;
  readonly #stream: number;
  #drawn = 0;
  #at = 0;

  constructor(length: number, seed: number, stream: number) {
    this.#length = length;
    this.#seed = seed;
    this.#stream = stream;
  }

  next(): number {
    const length = this.#length;
    if (this.#drawn % stretchSteps === 0) {
      this.#at = Math.floor(counterUniform(this.#seed, this.#stream, this.#drawn / stretchSteps) * length);
    }
    this.#drawn++;
    const place = this.#at;
    this.#at = (this.#at + 1) % length;
    return place;
  }
}
