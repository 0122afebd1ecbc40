// What the streams of an engine show of its step times: the duration of prefills, and the gaps between tokens.
import { StepCost } from '../cost/step-cost.ts';
import type { RequestId } from '../protocol/ids.ts';

interface Stream {
  readonly forwardedUs: number;
  /** Undefined: no token has arrived. */
  lastUs: number | undefined;
  /** Prompt and output. */
  tokens: number;
}

/** First tokens that arrive within this time are of one step. */
const sameStepUs = 2_000;
/** Gaps are observed at most this often: one step of an engine shows in the gaps of all its streams. */
const observeEveryUs = 10_000;

/**
 * An engine does not announce its steps. A prefill is taken to begin when its request is forwarded, or when the first
 * token of an earlier request arrives, whichever is later. A gap without a prefill is a step of decode rows.
 */
export class StreamCosts {
  readonly steps = new StepCost();
  readonly #streams = new Map<RequestId, Stream>();
  #lastFirstTokenUs = Number.NEGATIVE_INFINITY;
  #prefilling = 0;
  /** Since then no prefill has been under way. */
  #decodingSinceUs = 0;
  #contextTokens = 0;
  #observedUs = Number.NEGATIVE_INFINITY;

  /** Streams with tokens, and without. */
  get running(): number {
    return this.#streams.size;
  }

  get waiting(): number {
    return this.#prefilling;
  }

  /** Tokens of prompts and output under way. */
  get contextTokens(): number {
    return this.#contextTokens;
  }

  forwarded(nowUs: number, id: RequestId, promptTokens: number): void {
    this.#streams.set(id, { forwardedUs: nowUs, lastUs: undefined, tokens: promptTokens });
    this.#contextTokens += promptTokens;
    this.#prefilling++;
  }

  /**
   * Tokens have arrived. Returns the time that the prefill took, with the first ones: 0 where it shared the steps of an
   * earlier one.
   */
  received(nowUs: number, id: RequestId, tokens: number): number | undefined {
    const stream = this.#streams.get(id);
    if (stream === undefined) return undefined;
    const { lastUs } = stream;
    stream.lastUs = nowUs;
    stream.tokens += tokens;
    this.#contextTokens += tokens;
    if (lastUs !== undefined) {
      if (this.#prefilling === 0 && lastUs >= this.#decodingSinceUs) this.#observe(nowUs, (nowUs - lastUs) / tokens);
      return undefined;
    }
    const shared = nowUs - this.#lastFirstTokenUs < sameStepUs;
    const prefillUs = shared ? 0 : nowUs - Math.max(stream.forwardedUs, this.#lastFirstTokenUs);
    this.#lastFirstTokenUs = nowUs;
    this.#endPrefill(nowUs);
    return prefillUs;
  }

  ended(nowUs: number, id: RequestId): void {
    const stream = this.#streams.get(id);
    if (stream === undefined) return;
    this.#streams.delete(id);
    this.#contextTokens -= stream.tokens;
    if (stream.lastUs === undefined) this.#endPrefill(nowUs);
  }

  #endPrefill(nowUs: number): void {
    this.#prefilling--;
    if (this.#prefilling === 0) this.#decodingSinceUs = nowUs;
  }

  #observe(nowUs: number, stepUs: number): void {
    if (nowUs - this.#observedUs < observeEveryUs) return;
    this.#observedUs = nowUs;
    const rows = this.#streams.size;
    const keys = this.#contextTokens;
    this.steps.observe({ rows, keyRows: keys, decodeRows: rows, decodeKeys: keys, logitRows: rows }, [stepUs]);
  }
}
