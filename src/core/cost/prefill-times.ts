// How long prefills take, learned from how long the latest ones took.
import type { PrefillPredictor } from './prefill.ts';

/** A guess until the first prefill has ended. */
const usPerTokenGuess = 200;
/** Weight of the latest prefill. */
const newest = 0.2;
/** What a prompt of any length takes besides, as so many tokens: few rows cost as much as many, and messages take their time. */
const tokensBesides = 32;

/** Time from a prompt's start to its first token goes by the tokens that had to be computed, as lately; of who has computed none, as with the others. */
export class PrefillTimes implements PrefillPredictor {
  readonly #all: readonly PrefillTimes[];
  #usPerToken: number | undefined;

  private constructor(all: readonly PrefillTimes[]) {
    this.#all = all;
  }

  /** (instances): those of a kind share one. @param kinds (instances): equal for those that compute alike */
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
    this.#usPerToken += newest * (us / workOf(computedTokens) - this.#usPerToken);
  }

  /** Another computes in its place. */
  forget(): void {
    this.#usPerToken = undefined;
  }

  #mean(): number {
    const learned = this.#all.flatMap((times) => times.#usPerToken ?? []);
    return learned.length === 0 ? usPerTokenGuess : learned.reduce((sum, us) => sum + us, 0) / learned.length;
  }
}

function workOf(computedTokens: number): number {
  return Math.max(1, computedTokens) + tokensBesides;
}
