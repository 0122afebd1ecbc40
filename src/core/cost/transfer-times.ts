// How long keys and values would take from one instance to another, as far as is known of what their NICs have to carry already.

/** What an instance sends, and what it receives, at most; and what passes before the first byte. */
export interface TransferEnd {
  readonly bytesPerSecond: number;
  readonly us: number;
}

export interface TransferConfig {
  /** (instances). */
  readonly ends: readonly TransferEnd[];
  /** Between two instances, where that is less than their NICs. */
  readonly linkBytesPerSecond: number | undefined;
  readonly bytesPerToken: number;
}

/**
 * What was told to move is taken to occupy the NICs of both its ends one after the other, from when it was told: so nobody has to say when it
 * has arrived. The sender's backlog of Mooncake's `EstimateKVCacheTransferTime`.
 */
export class TransferTimes {
  readonly #config: TransferConfig;
  /** (instances): until when each has something to send, and to receive. */
  readonly #sendsUntilUs: Float64Array;
  readonly #receivesUntilUs: Float64Array;

  constructor(config: TransferConfig) {
    this.#config = config;
    this.#sendsUntilUs = new Float64Array(config.ends.length);
    this.#receivesUntilUs = new Float64Array(config.ends.length);
  }

  /** Until `tokens` tokens that are asked for now have come: microseconds. */
  predictUs(nowUs: number, from: number, to: number, tokens: number): number {
    const { ends, linkBytesPerSecond = Number.POSITIVE_INFINITY, bytesPerToken } = this.#config;
    const backlogUs = Math.max(0, this.#sendsUntilUs[from] - nowUs, this.#receivesUntilUs[to] - nowUs);
    const bytesPerSecond = Math.min(ends[from].bytesPerSecond, ends[to].bytesPerSecond, linkBytesPerSecond);
    return backlogUs + this.askUs(from, to) + (tokens * bytesPerToken * 1e6) / bytesPerSecond;
  }

  /** One way to ask, one way back: microseconds. */
  askUs(from: number, to: number): number {
    const { ends } = this.#config;
    return 2 * Math.max(ends[from].us, ends[to].us);
  }

  /** What an instance has to send before anything else: microseconds. */
  backlogUs(nowUs: number, from: number): number {
    return Math.max(0, this.#sendsUntilUs[from] - nowUs);
  }

  /** So many tokens move from now on. */
  add(nowUs: number, from: number, to: number, tokens: number): void {
    const bytes = tokens * this.#config.bytesPerToken;
    const { ends } = this.#config;
    this.#sendsUntilUs[from] = Math.max(nowUs, this.#sendsUntilUs[from]) + (bytes * 1e6) / ends[from].bytesPerSecond;
    this.#receivesUntilUs[to] = Math.max(nowUs, this.#receivesUntilUs[to]) + (bytes * 1e6) / ends[to].bytesPerSecond;
  }
}
