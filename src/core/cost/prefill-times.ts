// Prefill times of live instances: from their reported step times, corrected by the latest prefills.

import type { StepShape } from '../protocol/step-shape.ts';
import { ChunkedPrefill, type PrefillPredictor } from './prefill.ts';
import { StepCost } from './step-cost.ts';

/** Steps of an instance that has not reported its step cost: a fixed part, and a time per row. */
const guess = { predictUs: ({ rows }: Pick<StepShape, 'rows'>): number => 200 * (rows + 32) };
/** Weight of the latest prefill. */
const newestWeight = 0.2;

/** What all instances have in common. */
interface Known {
  /** Their mean ratio, until one changes. */
  mean: number | undefined;
  /** The first that has reported its step cost. */
  reported: PrefillTimes | undefined;
}

/**
 * Time from a prompt's start to its first token: the steps of its chunks by the reported step cost, times the ratio of observed to predicted
 * times of prompts that ran alone. That ratio contains messages, and the time between steps. An instance without observations uses the mean
 * ratio of the others, and one without a step cost that of another instance.
 */
export class PrefillTimes implements PrefillPredictor {
  readonly #all: readonly PrefillTimes[];
  readonly #chunkTokens: number;
  /** Undefined until it is reported. */
  #steps: StepCost | undefined;
  #chunks: ChunkedPrefill;
  #ratio: number | undefined;
  readonly #known: Known;

  private constructor(all: readonly PrefillTimes[], known: Known, chunkTokens: number) {
    this.#all = all;
    this.#known = known;
    this.#chunkTokens = chunkTokens;
    this.#chunks = new ChunkedPrefill(guess, chunkTokens);
  }

  /** (instances): instances of one kind share one object. @param kinds (instances): equal for equal hardware @param chunkTokens maximum rows of a step */
  static of(kinds: readonly number[], chunkTokens: number): readonly PrefillTimes[] {
    const all: PrefillTimes[] = [];
    const known: Known = { mean: undefined, reported: undefined };
    const times = new Map<number, PrefillTimes>();
    for (const kind of kinds) if (!times.has(kind)) times.set(kind, new PrefillTimes(all, known, chunkTokens));
    all.push(...times.values());
    return kinds.map((kind) => times.get(kind) ?? new PrefillTimes(all, known, chunkTokens));
  }

  prefillUs(tokens: number, cachedTokens: number): number {
    return this.#reported.#chunks.prefillUs(tokens, cachedTokens) * (this.#ratio ?? this.#mean());
  }

  /** The times whose step cost this one uses: its own, or that of another instance, so that their predictions compare. */
  get #reported(): PrefillTimes {
    return this.#steps === undefined ? (this.#known.reported ?? this) : this;
  }

  /** An instance of this kind reports its learned step times. */
  setStepCost(coefficients: readonly number[]): void {
    if (this.#steps === undefined) {
      this.#steps = new StepCost();
      this.#chunks = new ChunkedPrefill(this.#steps, this.#chunkTokens);
      this.#setRatio(undefined);
      this.#forgetUnreported();
    }
    this.#steps.setCoefficients(coefficients);
  }

  /** False: no instance of this kind reports its step cost, so that all prompts are observed. */
  get isReported(): boolean {
    return this.#steps !== undefined;
  }

  /** A prompt was computed; where step costs are reported, while its instance had no other request. */
  observe(tokens: number, cachedTokens: number, us: number): void {
    const ratio = this.#ratio ?? this.#mean();
    this.#setRatio(ratio + newestWeight * (us / this.#reported.#chunks.prefillUs(tokens, cachedTokens) - ratio));
  }

  /** Discards the measurements: another instance has taken its place. */
  reset(): void {
    this.#steps = undefined;
    this.#chunks = new ChunkedPrefill(guess, this.#chunkTokens);
    this.#setRatio(undefined);
    this.#forgetUnreported();
  }

  /** Discards the ratios of instances without a step cost of their own if the one that they use is now another. */
  #forgetUnreported(): void {
    const reported = this.#all.find((each) => each.isReported);
    if (reported === this.#known.reported) return;
    this.#known.reported = reported;
    for (const each of this.#all) if (!each.isReported) each.#setRatio(undefined);
  }

  #setRatio(ratio: number | undefined): void {
    this.#ratio = ratio;
    this.#known.mean = undefined;
  }

  #mean(): number {
    const mean = this.#known.mean ?? this.#computeMean();
    this.#known.mean = mean;
    return mean;
  }

  #computeMean(): number {
    const learned = this.#all.flatMap((times) => times.#ratio ?? []);
    return learned.length === 0 ? 1 : learned.reduce((sum, ratio) => sum + ratio, 0) / learned.length;
  }
}
