// Predicted time of reading blocks from an instance's SSD, including the reads already queued.

/** Read bandwidth; undefined: the instance has no SSD. */
export interface SsdEnd {
  readonly ssdBytesPerSecond: number | undefined;
}

export interface SsdConfig {
  /** (instances). */
  readonly ends: readonly SsdEnd[];
  readonly bytesPerToken: number;
}

/** Reads are assumed to start when they are requested, one prefix after another. */
export class SsdTimes {
  readonly #config: SsdConfig;
  /** (instances): end of each instance's queued reads. */
  readonly #readsUntilUs: Float64Array;

  constructor(config: SsdConfig) {
    this.#config = config;
    this.#readsUntilUs = new Float64Array(config.ends.length);
  }

  /** Microseconds until `tokens` tokens requested at `nowUs` are read. */
  predictUs(nowUs: number, instance: number, tokens: number): number {
    return tokens === 0 ? 0 : Math.max(0, this.#readsUntilUs[instance] - nowUs) + this.#readUs(instance, tokens);
  }

  /** Queues a read of `tokens` tokens. */
  add(nowUs: number, instance: number, tokens: number): void {
    if (tokens === 0) return;
    this.#readsUntilUs[instance] = Math.max(nowUs, this.#readsUntilUs[instance]) + this.#readUs(instance, tokens);
  }

  #readUs(instance: number, tokens: number): number {
    const { ends, bytesPerToken } = this.#config;
    const { ssdBytesPerSecond = Number.POSITIVE_INFINITY } = ends[instance];
    return (tokens * bytesPerToken * 1e6) / ssdBytesPerSecond;
  }
}
