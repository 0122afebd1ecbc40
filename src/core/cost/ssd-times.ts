// How long blocks would take from an instance's SSD, as far as is known of what it has to read already.

/** What it reads, at most; undefined: it has none. */
export interface SsdEnd {
  readonly ssdBytesPerSecond: number | undefined;
}

export interface SsdConfig {
  /** (instances). */
  readonly ends: readonly SsdEnd[];
  readonly bytesPerToken: number;
}

/** What is to be read is taken to be read from when it was asked for, one prefix after the other. */
export class SsdTimes {
  readonly #config: SsdConfig;
  /** (instances): until when each has something to read. */
  readonly #readsUntilUs: Float64Array;

  constructor(config: SsdConfig) {
    this.#config = config;
    this.#readsUntilUs = new Float64Array(config.ends.length);
  }

  /** How long it is until `tokens` tokens have been read that are asked for at `nowUs`: microseconds. */
  predictUs(nowUs: number, instance: number, tokens: number): number {
    return tokens === 0 ? 0 : Math.max(0, this.#readsUntilUs[instance] - nowUs) + this.#readUs(instance, tokens);
  }

  /** So many tokens are read from now on. */
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
