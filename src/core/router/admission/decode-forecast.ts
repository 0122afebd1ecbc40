// Forecast of the decode pool for the time at which a prefill ends (Mooncake, section 6.2), learned from ended requests.

import { assertNever } from '../../../util/assert-never.ts';
import type { DecodePool } from './decode-pool.ts';
import { type LengthDistribution, OutputLengths } from './output-lengths.ts';
import { RefusalOdds } from './refusal-odds.ts';

/**
 * td: every decode lasts the configured time t_d; mean: every decode lasts the mean time of the ended ones (both Mooncake, section 6.2, system
 * level). lengths: each decode lasts as the outputs of its class have (request level). A new forecast is one more kind here and one more case
 * in `DecodeForecast.countAt`.
 */
export const forecastKinds = ['td', 'mean', 'lengths'] as const;
export type ForecastKind = (typeof forecastKinds)[number];

export interface ForecastSettings {
  readonly kind: ForecastKind;
  /** Duration of a decode; for `mean`, until the first decode has ended. */
  readonly decodeUs: number;
  /** A load is refused before prefill when this share of the requests with such a load is refused on the decode instance. */
  readonly refusalProbabilityMax: number;
}

/** Step of the estimated ratio for each observed TTFT. */
const ratioStep = 0.01;
/** Decodes that the running mean covers. */
const rememberedMax = 1024;

export class DecodeForecast {
  readonly #kind: ForecastKind;
  readonly #pool: DecodePool;
  readonly #outputs = new OutputLengths();
  readonly #configuredUs: number;
  /** Undefined until a decode has ended. */
  #meanUs: number | undefined;
  #observed = 0;
  /** Median of actual over predicted TTFT: short prompts overtake long ones, and prefixes arrive during the wait. */
  #ttftRatio = 1;
  readonly #refusalProbabilityMax: number;
  readonly #odds = new RefusalOdds();

  constructor(pool: DecodePool, { kind, decodeUs, refusalProbabilityMax }: ForecastSettings) {
    this.#pool = pool;
    this.#kind = kind;
    this.#configuredUs = decodeUs;
    this.#refusalProbabilityMax = refusalProbabilityMax;
  }

  /** The duration that the system-level forecasts take every decode to have. */
  get decodeUs(): number {
    return this.#kind === 'mean' ? this.meanUs : this.#configuredUs;
  }

  /** Mean duration of the ended decodes; the configured one before the first has ended. */
  get meanUs(): number {
    return this.#meanUs ?? this.#configuredUs;
  }

  outputsOf(outputClass: string): LengthDistribution {
    return this.#outputs.of(outputClass);
  }

  /** The pool, counted as it will be at `atUs`. */
  countAt(nowUs: number, atUs: number, priority?: number): DecodePool {
    switch (this.#kind) {
      case 'td':
      case 'mean':
        return this.#pool.countAt(nowUs, atUs, this.decodeUs, priority);
      case 'lengths':
        return this.#pool.countExpected(nowUs, atUs, priority);
      default:
        return assertNever(this.#kind);
    }
  }

  /** Time until the decode of a request with this predicted TTFT starts. */
  decodeStartsAfterUs(ttftUs: number): number {
    return ttftUs * this.#ttftRatio;
  }

  /** The decode of a request has started. @param actualUs time since it was accepted */
  decodeStarted(predictedUs: number, actualUs: number): void {
    this.#ttftRatio += actualUs > predictedUs * this.#ttftRatio ? ratioStep / 2 : -ratioStep / 2;
    this.#ttftRatio = Math.max(ratioStep, this.#ttftRatio);
  }

  /** Shifts a forecast load so that it is 1 where the share `refusalProbabilityMax` of requests is refused on the decode instance. */
  corrected(load: number): number {
    return load + 1 - this.#odds.loadAt(this.#refusalProbabilityMax);
  }

  /** A request with this forecast load reached its decode instance. */
  reachedDecode(load: number, refused: boolean): void {
    this.#odds.observe(load, refused);
  }

  /** A request was refused for its forecast load. */
  refused(): void {
    this.#odds.decay();
  }

  /** A request has finished. @param decodedUs duration of its decode */
  ended(outputClass: string, tokens: number, decodedUs: number): void {
    this.#outputs.observe(outputClass, tokens);
    const meanUs = this.#meanUs ?? 0;
    this.#observed = Math.min(rememberedMax, this.#observed + 1);
    this.#meanUs = meanUs + (decodedUs - meanUs) / this.#observed;
  }
}
