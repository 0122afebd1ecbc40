// The pool that decodes as it will be when a prefill ends, and what is learned for that from requests that ended.
import type { DecodePool } from './decode-pool.ts';
import { type LengthDistribution, OutputLengths } from './output-lengths.ts';
import { RefusalOdds } from './refusal-odds.ts';

/**
 * td: every decode lasts a time that is given. mean: the mean time of those that ended (both system level, Mooncake 6.2). lengths: each
 * goes on as outputs of its kind have (request level).
 */
export const forecastKinds = ['td', 'mean', 'lengths'] as const;
export type ForecastKind = (typeof forecastKinds)[number];

export interface ForecastSettings {
  readonly kind: ForecastKind;
  /** That a decode lasts; where that is learned, until one has ended. */
  readonly decodeUs: number;
  /** Share of requests of some load, refused where they decode, from which on those of that load are refused before prefill. */
  readonly oddsMax: number;
}

/** How far one request moves what is thought of the wait. */
const paceStep = 0.01;
/** Decodes that the mean time remembers. */
const rememberedMax = 1024;

export class DecodeForecast {
  readonly #kind: ForecastKind;
  readonly #pool: DecodePool;
  readonly #outputs = new OutputLengths();
  /** As given. */
  readonly #givenUs: number;
  /** Learned; undefined until a decode has ended. */
  #meanUs: number | undefined;
  #known = 0;
  /** By which predicted waits are multiplied, so that half are longer: short prompts overtake long ones, and prefixes come meanwhile. */
  #pace = 1;
  readonly #oddsMax: number;
  readonly #odds = new RefusalOdds();

  constructor(pool: DecodePool, { kind, decodeUs, oddsMax }: ForecastSettings) {
    this.#pool = pool;
    this.#kind = kind;
    this.#givenUs = decodeUs;
    this.#oddsMax = oddsMax;
  }

  /** How long a decode is taken to last. */
  get decodeUs(): number {
    return this.#kind === 'mean' ? this.meanUs : this.#givenUs;
  }

  /** How long decodes lasted that ended. */
  get meanUs(): number {
    return this.#meanUs ?? this.#givenUs;
  }

  outputsOf(kind: string): LengthDistribution {
    return this.#outputs.of(kind);
  }

  /** The pool, counted as it will be. */
  countAt(nowUs: number, atUs: number): DecodePool {
    return this.#kind === 'lengths'
      ? this.#pool.countExpected(nowUs, atUs)
      : this.#pool.countAt(nowUs, atUs, this.decodeUs);
  }

  /** When a request joins whose first token is predicted after so long. */
  joinsAfterUs(ttftUs: number): number {
    return ttftUs * this.#pace;
  }

  joined(predictedUs: number, actualUs: number): void {
    this.#pace += actualUs > predictedUs * this.#pace ? paceStep / 2 : -paceStep / 2;
    this.#pace = Math.max(paceStep, this.#pace);
  }

  /** A forecast load, so that it is 1 where as many as may be are refused at last. */
  corrected(load: number): number {
    return load + 1 - this.#odds.loadAt(this.#oddsMax);
  }

  /** A request whose load was forecast so, and corrected, came to where it decodes. */
  reachedDecode(load: number, refused: boolean): void {
    this.#odds.observe(load, refused);
  }

  /** A request was refused by its forecast. */
  refused(): void {
    this.#odds.decay();
  }

  /** An output came to its end. @param decodedUs since it joined */
  ended(kind: string, tokens: number, decodedUs: number): void {
    this.#outputs.observe(kind, tokens);
    const meanUs = this.#meanUs ?? 0;
    this.#known = Math.min(rememberedMax, this.#known + 1);
    this.#meanUs = meanUs + (decodedUs - meanUs) / this.#known;
  }
}
