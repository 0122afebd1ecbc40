// The load that an engine reports, and the part of it that this gateway has not placed.
import type { PlacedLoad } from '../protocol/instance-report.ts';

export interface EngineLoad {
  /** Requests in its steps. */
  readonly running: number;
  readonly waiting: number;
  /** Share of KV memory in use, 0 to 1. */
  readonly usage: number;
}

/** Requests of this gateway at an engine. */
export interface OwnCalls {
  readonly calls: number;
  /** Of these, calls without a first token. */
  readonly unstarted: number;
  /** Prompt and output tokens of those with a first token. */
  readonly startedTokens: number;
  readonly promptTokens: number;
}

/**
 * Requests of other gateways and clients at one engine: what it reports beyond the own calls. A reading may be older than
 * the last own calls, so the most calls since the reading before the last are subtracted: others are rather undercounted.
 */
export class OthersLoad {
  readonly #capacityTokens: number;
  /** Most own calls between the last two readings, and since the last. */
  #before = 0;
  #since = 0;

  constructor(capacityTokens: number) {
    this.#capacityTokens = capacityTokens;
  }

  /** A call has begun. @param calls under way */
  callBegan(calls: number): void {
    this.#since = Math.max(this.#since, calls);
  }

  /**
   * The part of a reading that is not of own calls. The engine states no lengths: waiting prompts count as long as the
   * others' running requests, or else as own prompts.
   */
  othersIn(load: EngineLoad, own: OwnCalls): PlacedLoad {
    const most = Math.max(this.#before, this.#since, own.calls);
    this.#before = this.#since;
    this.#since = own.calls;
    const others = Math.max(0, load.running + load.waiting - most);
    if (others === 0) return { prefills: [], rows: 0, tokens: 0 };
    const prompts = Math.min(others, Math.max(0, load.waiting - own.unstarted));
    const rows = others - prompts;
    const tokens = rows === 0 ? 0 : Math.max(rows, Math.round(load.usage * this.#capacityTokens) - own.startedTokens);
    const meanTokens = rows > 0 ? tokens / rows : own.calls > 0 ? own.promptTokens / own.calls : 1;
    const waiting = { priority: 0, prompts, tokens: Math.max(prompts, Math.round(prompts * meanTokens)) };
    return { prefills: prompts > 0 ? [waiting] : [], rows, tokens };
  }
}
