// Learned transfer times of live instances: the bandwidths of recent page transfers and SSD reads, and the latency of a request.

import type { SsdConfig, SsdEnd } from '../../cost/ssd-times.ts';
import type { TransferConfig, TransferEnd } from '../../cost/transfer-times.ts';
import type { InstanceSnapshot } from '../../protocol/ports.ts';

/** Before the first transfer and the first SSD read. */
const initialBytesPerSecond = 2e9;
const initialSsdBytesPerSecond = 1e9;
/** Latency of an idle instance. */
const idleUs = 500;
/** Fewer bytes give no reliable bandwidth. */
const sampleBytesMin = 2 ** 20;

/** The part of an instance snapshot that shows bandwidth and latency. */
type TransferSnapshot = Pick<InstanceSnapshot, 'running' | 'steps' | 'stepMsTotal'> & {
  readonly sent?: Pick<NonNullable<InstanceSnapshot['sent']>, 'bytes' | 'copySeconds'>;
  readonly tiers?: Pick<NonNullable<InstanceSnapshot['tiers']>, 'moved'> | undefined;
};

/** An instance serves requests of other instances between two steps: its latency is that of a step. */
class LearnedEnd implements TransferEnd, SsdEnd {
  bytesPerSecond = initialBytesPerSecond;
  ssdBytesPerSecond = initialSsdBytesPerSecond;
  us = idleUs;
  #steps = 0;
  #stepMs = 0;

  observe({ sent, running, steps, stepMsTotal, tiers }: TransferSnapshot): void {
    const { ssdReadBytes = 0, ssdReadSeconds = 0 } = tiers?.moved ?? {};
    if (ssdReadBytes >= sampleBytesMin && ssdReadSeconds > 0) this.ssdBytesPerSecond = ssdReadBytes / ssdReadSeconds;
    if (sent !== undefined && sent.bytes >= sampleBytesMin && sent.copySeconds > 0)
      this.bytesPerSecond = sent.bytes / sent.copySeconds;
    if (steps > this.#steps) {
      const meanUs = (1000 * (stepMsTotal - this.#stepMs)) / (steps - this.#steps);
      this.us = idleUs + (running > 0 ? meanUs : 0);
    } else if (running === 0) this.us = idleUs;
    this.#steps = steps;
    this.#stepMs = stepMsTotal;
  }
}

export class LearnedTransfers {
  readonly config: TransferConfig;
  readonly ssds: SsdConfig;
  readonly #ends: readonly LearnedEnd[];
  /** (instances): those to which each cannot send. */
  readonly #unreachable: ReadonlySet<number>[];

  constructor(instances: number, bytesPerToken: number) {
    this.#ends = Array.from({ length: instances }, () => new LearnedEnd());
    this.#unreachable = Array.from({ length: instances }, () => new Set());
    const reaches = (from: number, to: number): boolean => !this.#unreachable[from].has(to);
    this.config = { ends: this.#ends, linkBytesPerSecond: undefined, bytesPerToken, reaches };
    this.ssds = { ends: this.#ends, bytesPerToken };
  }

  observe(instance: number, snapshot: TransferSnapshot): void {
    this.#ends[instance]?.observe(snapshot);
  }

  setUnreachable(from: number, peers: readonly number[]): void {
    this.#unreachable[from] = new Set(peers);
  }
}
