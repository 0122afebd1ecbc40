// Short prompts that are prefilled where they decode: no hand-off, one step of those who decode there takes longer (Mooncake, section 5.1).
import type { DecodePool } from './decode-pool.ts';

export interface InlineLimits {
  /** Tokens to compute behind what is cached, at most, of all prompts under way at one instance: a chunk. */
  readonly tokensMax: number;
  /** Predicted time of the step that computes them, whatever the SLOs allow: a longer one would be cut into chunks. */
  readonly stepUsMax: number;
}

/** The prompt, as the prefix index of the conductor knows it. */
export interface CachedPrompt {
  /** Leading tokens that an instance has in its cache. */
  cachedTokens(instance: number): number;
}

/** A prompt that might be. */
export interface InlineQuestion {
  readonly promptTokens: number;
  /** What it may wait for each next token itself. */
  readonly tbtUs: number;
  /** (members): 1 where memory holds the request; undefined: everywhere. */
  readonly able?: Uint8Array | undefined;
}

export interface InlineChoice {
  readonly member: number;
  readonly cachedTokens: number;
  /** Until the step that runs there ends, and the step that computes the prompt. */
  readonly waitUs: number;
  readonly stepUs: number;
}

/** Prompts under way count together, so that whatever comes into one step stays within the bounds. */
export class InlinePrefill {
  readonly #pool: DecodePool;
  readonly #limits: InlineLimits;
  /** (members): tokens sent that are still to be computed. */
  readonly #pending: Float64Array;

  constructor(pool: DecodePool, members: number, limits: InlineLimits) {
    this.#pool = pool;
    this.#limits = limits;
    this.#pending = new Float64Array(members);
  }

  /**
   * The member whose step with the prompt in it is shortest, of those where it keeps the strictest TBT of all who decode; undefined: it
   * is computed elsewhere.
   */
  choose(nowUs: number, { promptTokens, tbtUs, able }: InlineQuestion, prompt: CachedPrompt): InlineChoice | undefined {
    this.#pool.countNow(nowUs);
    let best: InlineChoice | undefined;
    for (let member = 0; member < this.#pending.length; member++) {
      if (!this.#pool.takesHandOffs(member) || able?.[member] === 0) continue;
      const cached = prompt.cachedTokens(member);
      const rows = promptTokens - cached + this.#pending[member];
      if (rows > this.#limits.tokensMax || this.#pool.load(member, promptTokens).memory > 1) continue;
      const stepUs = this.#pool.stepUsWith(member, rows, cached);
      if (stepUs > Math.min(this.#limits.stepUsMax, tbtUs, this.#pool.strictestTbtUs(member))) continue;
      if (best !== undefined && stepUs >= best.stepUs) continue;
      best = { member, cachedTokens: cached, waitUs: this.#pool.load(member, 0).tbtUs, stepUs };
    }
    return best;
  }

  /** It was sent. */
  add(member: number, tokens: number): void {
    this.#pending[member] = this.#pending[member] + tokens;
  }

  /** It is computed, or will not be. */
  remove(member: number, tokens: number): void {
    this.#pending[member] = this.#pending[member] - tokens;
  }

  /** Throws unless no more is pending than what is bounded. @param pending (members): tokens of the requests that are known */
  check(pending: Float64Array): void {
    for (let i = 0; i < pending.length; i++) {
      if (pending[i] !== this.#pending[i] || pending[i] > this.#limits.tokensMax)
        throw new Error(
          `Inline prefill broken: member ${i} has ${pending[i]} tokens to compute, ${this.#pending[i]} are counted`,
        );
    }
  }
}
