// Prefill times, learned from the latest prefills.
import type { PrefillPredictor } from './prefill.ts';

/** Initial value, until the first prefill has ended. */
const usPerTokenGuess = 200;
/** Weight of the latest prefill. */
const newestWeight = 0.2;
/**
 * Fixed cost of a prompt, in tokens: a step with few rows takes nearly as long as one with many, and messages take
 * time.
 */
const fixedTokens = 32;

/**
 * Time from a prompt's start to its first token, proportional to the tokens computed. An instance without
 * measurements of its own uses the mean of the others.
 */
export class PrefillTimes implements PrefillPredictor {
  readonly #all: readonly PrefillTimes[];
  #usPerToken: number | undefined;

  private constructor(all: readonly PrefillTimes[]) {
    this.#all = all;
  }

  /** (instances): instances of one kind share one object. @param kinds (instances): equal for equal hardware */
  static of(kinds: readonly number[]): readonly PrefillTimes[] {
    const all: PrefillTimes[] = [];
    const times = new Map<number, PrefillTimes>();
    for (const kind of kinds) if (!times.has(kind)) times.set(kind, new PrefillTimes(all));
    all.push(...times.values());
    return kinds.map((kind) => times.get(kind) ?? new PrefillTimes(all));
  }

  prefillUs(tokens: number, cachedTokens: number): number {
    return workOf(tokens - cachedTokens) * (this.#usPerToken ?? this.#mean());
  }

  observe(computedTokens: number, us: number): void {
    this.#usPerToken ??= this.#mean();
    this.#usPerToken += newestWeight * (us / workOf(computedTokens) - this.#usPerToken);
  }

  /** Discards the measurements: another instance has taken its place. */
  reset(): void {
    this.#usPerToken = undefined;
  }

  #mean(): number {
    const learned = this.#all.flatMap((times) => times.#usPerToken ?? []);
    return learned.length === 0 ? usPerTokenGuess : learned.reduce((sum, us) => sum + us, 0) / learned.length;
  }
}

function workOf(computedTokens: number): number {
  return Math.max(1, computedTokens) + fixedTokens;
}
