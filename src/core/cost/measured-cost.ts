// Steps as a machine ran them: times fitted to steps that only decode and to those with prompts, and how far from them steps were, alone and beside others.
import { counterUniform } from '../../util/counter-random.ts';
import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import { fitLinearCost, type KvSizes, LinearCost, type LinearTimes, type TimedStep } from './linear-cost.ts';
import type { StepCostModel } from './roofline.ts';

export interface MeasuredStep extends TimedStep {
  /** How long it took as clients see it, which may be next to nothing where the step before came late. */
  readonly seenUs: number;
  /** Did another instance of the machine compute for the most of it? */
  readonly beside: boolean;
}

export interface MeasuredKind {
  readonly times: LinearTimes;
  /** In the order in which the steps ran: those that had the machine to themselves, */
  readonly alone: SeenSteps;
  /** and those that shared it. */
  readonly beside: SeenSteps;
}

/** (steps) */
export interface SeenSteps {
  /** Seen over fitted, `ratioMax` at most. */
  readonly ratios: Float64Array;
  /** What was seen beyond that: it was held up for so long, whatever its rows. */
  readonly pauseUs: Float64Array;
}

/** Whoever shares a core takes about so many times as long; what takes longer has waited. */
const ratioMax = 2;

/** Kernels for a few rows are others than those for many, so each kind has its own times. */
export interface MeasuredSteps {
  /** Steps in which every sequence runs one row. */
  readonly decode: MeasuredKind;
  /** Steps with rows of prompts, whoever decodes beside them. */
  readonly prompt: MeasuredKind;
}

/** Steps that follow one another are slow together: so many in a row are drawn as they were seen. */
const stretch = 16;

/**
 * @param graded steps of many shapes, which tell the times
 * @param typical steps as they follow one another under load, which tell how steps vary
 * @throws RangeError where there are no steps of a kind
 */
export function measureSteps(graded: readonly MeasuredStep[], typical: readonly MeasuredStep[]): MeasuredSteps {
  const of = (wanted: boolean, names?: readonly (keyof LinearTimes)[]): MeasuredKind => {
    const [shapes, load] = [graded, typical].map((steps) => steps.filter(({ shape }) => isDecode(shape) === wanted));
    const times = fitLinearCost([...shapes, ...load], names);
    return { times, ...ratiosOf(load.length > 0 ? load : shapes, times) };
  };
  // Where each sequence runs one row, decoding sequences and rows with logits are counted with the rows.
  return { decode: of(true, ['stepUs', 'rowUs', 'keyUs']), prompt: of(false) };
}

function ratiosOf(steps: readonly MeasuredStep[], times: LinearTimes): Pick<MeasuredKind, 'alone' | 'beside'> {
  const fitted = new LinearCost(times, noSizes);
  const seen = (beside: boolean): SeenSteps => {
    const chosen = steps.filter((step) => step.beside === beside);
    const ratios = Float64Array.from(chosen, ({ shape, seenUs }) => Math.min(ratioMax, seenUs / fitted.stepUs(shape)));
    const pauseUs = Float64Array.from(chosen, ({ shape, seenUs }) =>
      Math.max(0, seenUs - ratioMax * fitted.stepUs(shape)),
    );
    return { ratios, pauseUs };
  };
  return { alone: seen(false), beside: seen(true) };
}

const noSizes: KvSizes = { layers: 1, kvBytesPerToken: 0, kvCapacityTokens: 0, activationBytesPerToken: 0 };

function isDecode({ rows, decodeRows }: StepShape): boolean {
  return rows === decodeRows;
}

export interface Variation {
  readonly seed: number;
  /** Does another instance of the machine compute now? */
  readonly beside: () => boolean;
}

/**
 * Steps vary as they were seen to vary: a stretch of the seen ratios after another, each from a place drawn anew (moving blocks, Künsch 1989).
 * TBT is made of a request's longest gaps, which a model without spread makes all alike and too short.
 */
export class MeasuredCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #decode: Kind;
  readonly #prompt: Kind;
  readonly #variation: Variation | undefined;

  /** @param variation undefined: every step takes what is fitted */
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

/** Where nothing was seen alone, or beside others, the one stands for the other. */
function kindOf({ times, alone, beside }: MeasuredKind, sizes: KvSizes, [seed, stream]: [number, number]): Kind {
  return {
    cost: new LinearCost(times, sizes),
    alone: new DrawnSteps(alone.ratios.length > 0 ? alone : beside, seed, stream),
    beside: new DrawnSteps(beside.ratios.length > 0 ? beside : alone, seed, stream + 1),
  };
}

class DrawnSteps {
  readonly #seen: SeenSteps;
  readonly #places: MovingBlocks;

  constructor(seen: SeenSteps, seed: number, stream: number) {
    this.#seen = seen;
    this.#places = new MovingBlocks(seen.ratios.length, seed, stream);
  }

  next(): { readonly ratio: number; readonly pauseUs: number } {
    const place = this.#places.next();
    return { ratio: this.#seen.ratios[place], pauseUs: this.#seen.pauseUs[place] };
  }
}

/** Places in a series, in stretches. Pure of (length, seed, stream, how many were drawn). */
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
    if (this.#drawn % stretch === 0) {
      this.#at = Math.floor(counterUniform(this.#seed, this.#stream, this.#drawn / stretch) * length);
    }
    this.#drawn++;
    const place = this.#at;
    this.#at = (this.#at + 1) % length;
    return place;
  }
}
