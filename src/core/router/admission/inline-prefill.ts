// Inline prefill: a short prompt is computed on the instance that decodes it, within one decoding step and without a hand-off (Mooncake, section 5.1).

import type { DecodePool } from './decode-pool.ts';

export interface InlineLimits {
  /** Maximum number of uncached tokens of all inline prompts on one instance: one chunk. */
  readonly tokensMax: number;
  /** Maximum predicted duration of the step that computes them, whatever the SLOs allow: a longer step is split into chunks. */
  readonly stepUsMax: number;
}

/** The prompt, as the prefix index of the conductor has it. */
export interface CachedPrompt {
  /** Leading tokens that an instance has in its cache. */
  cachedTokens(instance: number): number;
}

interface InlinePrompt {
  readonly promptTokens: number;
  /** TBT bound of the request itself. */
  readonly tbtUs: number;
  /** (members): 1 where memory holds the request; undefined: everywhere. */
  readonly eligible?: Uint8Array | undefined;
}

export interface InlineChoice {
  readonly member: number;
  readonly cachedTokens: number;
  /** Until the running step ends. */
  readonly waitUs: number;
  /** Duration of the step that computes the prompt. */
  readonly stepUs: number;
}

/** Pending inline prompts count together, so that all of them in one step stay within the limits. */
export class InlinePrefill {
  readonly #pool: DecodePool;
  readonly #limits: InlineLimits;
  /** (members): tokens that were sent and are not computed. */
  readonly #pending: Float64Array;

  constructor(pool: DecodePool, members: number, limits: InlineLimits) {
    this.#pool = pool;
    this.#limits = limits;
    this.#pending = new Float64Array(members);
  }

  /** The member with the shortest step that keeps the strictest TBT bound of its batch; undefined: another instance computes the prompt. */
  choose(
    nowUs: number,
    { promptTokens, tbtUs, eligible }: InlinePrompt,
    prompt: CachedPrompt,
  ): InlineChoice | undefined {
    this.#pool.countNow(nowUs);
    let best: InlineChoice | undefined;
    for (let member = 0; member < this.#pending.length; member++) {
      if (!this.#pool.takesHandOffs(member) || eligible?.[member] === 0) continue;
      const cachedTokens = prompt.cachedTokens(member);
      const rows = promptTokens - cachedTokens + this.#pending[member];
      if (rows > this.#limits.tokensMax || this.#pool.load(member, promptTokens).memory > 1) continue;
      const stepUs = this.#pool.stepUsWith(member, rows, cachedTokens);
      if (stepUs > Math.min(this.#limits.stepUsMax, tbtUs, this.#pool.strictestTbtUs(member))) continue;
      if (best !== undefined && stepUs >= best.stepUs) continue;
      best = { member, cachedTokens, waitUs: this.#pool.load(member, 0).tbtUs, stepUs };
    }
    return best;
  }

  /** A prompt was sent. */
  add(member: number, tokens: number): void {
    this.#pending[member] = this.#pending[member] + tokens;
  }

  /** A prompt is computed or cancelled. */
  remove(member: number, tokens: number): void {
    this.#pending[member] = this.#pending[member] - tokens;
  }

  /** Throws unless the pending tokens are these, and within the limit. @param pending (members) */
  check(pending: Float64Array): void {
    for (let i = 0; i < pending.length; i++) {
      if (pending[i] !== this.#pending[i] || pending[i] > this.#limits.tokensMax)
        throw new Error(
          `Inline prefill broken: member ${i} has ${pending[i]} tokens to compute, ${this.#pending[i]} are counted`,
        );
    }
  }
}
