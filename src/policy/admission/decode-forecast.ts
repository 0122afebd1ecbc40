// The pool that decodes as it will be when a prefill ends, and what is learned for that from requests that ended.
import type { DecodePool } from './decode-pool.ts';
import { type LengthDistribution, OutputLengths } from './output-lengths.ts';

/**
 * td: every decode lasts a time that is given. mean: the mean time of those that ended (both system level, Mooncake 6.2). lengths: each
 * goes on as outputs of its kind have (request level).
 */
export const forecastKinds = ['td', 'mean', 'lengths'] as const;
export type ForecastKind = (typeof forecastKinds)[number];

/** Decodes that the mean time remembers. */
const rememberedMax = 1024;

export class DecodeForecast {
  readonly #kind: ForecastKind;
  readonly #pool: DecodePool;
  readonly #outputs = new OutputLengths();
  /** Given, and then learned. */
  #decodeUs: number;
  #known = 0;

  /** @param decodeUs that a decode lasts; where that is learned, until one has ended */
  constructor(pool: DecodePool, kind: ForecastKind, decodeUs: number) {
    this.#pool = pool;
    this.#kind = kind;
    this.#decodeUs = decodeUs;
  }

  /** How long a decode is taken to last. */
  get decodeUs(): number {
    return this.#decodeUs;
  }

  outputsOf(kind: string): LengthDistribution {
    return this.#outputs.of(kind);
  }

  /** The pool, counted as it will be. */
  at(nowUs: number, atUs: number): DecodePool {
    return this.#kind === 'lengths' ? this.#pool.expected(nowUs, atUs) : this.#pool.at(nowUs, atUs, this.#decodeUs);
  }

  /** An output came to its end. @param decodedUs since it joined */
  ended(kind: string, tokens: number, decodedUs: number): void {
    this.#outputs.observe(kind, tokens);
    if (this.#kind !== 'mean') return;
    this.#known = Math.min(rememberedMax, this.#known + 1);
    this.#decodeUs += (decodedUs - this.#decodeUs) / this.#known;
  }
}
