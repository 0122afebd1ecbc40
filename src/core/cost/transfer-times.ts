// Predicted time of moving keys and values between instances, including the transfers already queued on their NICs.

/** Bandwidth of an instance, and latency before the first byte. */
export interface TransferEnd {
  readonly bytesPerSecond: number;
  readonly us: number;
}

export interface TransferConfig {
  /** (instances). */
  readonly ends: readonly TransferEnd[];
  /** Bandwidth between two instances, if lower than their NICs. */
  readonly linkBytesPerSecond: number | undefined;
  /** Figures of one link in place of those of its ends, where it is known: its rate, and what it adds to their latency. */
  readonly link?: (from: number, to: number) => TransferEnd | undefined;
  readonly bytesPerToken: number;
  /** False where an instance cannot send to another one; undefined: all can. */
  readonly reaches?: (from: number, to: number) => boolean;
}

/**
 * A transfer is assumed to occupy the NICs of both ends, one after another, from the time of its request: no completion
 * report is necessary. Mooncake's `EstimateKVCacheTransferTime` counts the sender's backlog in the same way.
 */
export class TransferTimes {
  readonly #config: TransferConfig;
  /** (instances): end of each instance's queued sends, and of its queued receives. */
  readonly #sendsUntilUs: Float64Array;
  readonly #receivesUntilUs: Float64Array;

  constructor(config: TransferConfig) {
    this.#config = config;
    this.#sendsUntilUs = new Float64Array(config.ends.length);
    this.#receivesUntilUs = new Float64Array(config.ends.length);
  }

  /** Microseconds until `tokens` tokens requested now have arrived; Infinity where they cannot be sent. */
  predictUs(nowUs: number, from: number, to: number, tokens: number): number {
    if (this.#config.reaches?.(from, to) === false) return Number.POSITIVE_INFINITY;
    const { ends, linkBytesPerSecond = Number.POSITIVE_INFINITY, bytesPerToken } = this.#config;
    const backlogUs = Math.max(0, this.#sendsUntilUs[from] - nowUs, this.#receivesUntilUs[to] - nowUs);
    const ofEnds = Math.min(ends[from].bytesPerSecond, ends[to].bytesPerSecond, linkBytesPerSecond);
    const bytesPerSecond = this.#config.link?.(from, to)?.bytesPerSecond ?? ofEnds;
    return backlogUs + this.roundTripUs(from, to) + (tokens * bytesPerToken * 1e6) / bytesPerSecond;
  }

  /** Microseconds of a request and its answer. */
  roundTripUs(from: number, to: number): number {
    const { ends, link } = this.#config;
    return 2 * (Math.max(ends[from].us, ends[to].us) + (link?.(from, to)?.us ?? 0));
  }

  /** Microseconds until an instance has sent everything queued. */
  backlogUs(nowUs: number, from: number): number {
    return Math.max(0, this.#sendsUntilUs[from] - nowUs);
  }

  /** Queues a transfer of `tokens` tokens. */
  add(nowUs: number, from: number, to: number, tokens: number): void {
    const bytes = tokens * this.#config.bytesPerToken;
    const { ends } = this.#config;
    this.#sendsUntilUs[from] = Math.max(nowUs, this.#sendsUntilUs[from]) + (bytes * 1e6) / ends[from].bytesPerSecond;
    this.#receivesUntilUs[to] = Math.max(nowUs, this.#receivesUntilUs[to]) + (bytes * 1e6) / ends[to].bytesPerSecond;
  }
}
