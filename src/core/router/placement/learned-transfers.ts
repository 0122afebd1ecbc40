// Learned transfer times of live instances: the bandwidths of recent page transfers and SSD reads, and the latency of a request.

import { linkFigures } from '../../cost/links/link-distance.ts';
import type { SsdConfig, SsdEnd } from '../../cost/ssd-times.ts';
import type { TransferConfig, TransferEnd } from '../../cost/transfer-times.ts';
import type { InstanceSnapshot, LinkSnapshot } from '../../protocol/ports.ts';

/** Before the first transfer and the first SSD read. */
const initialBytesPerSecond = 2e9;
const initialSsdBytesPerSecond = 1e9;
/** Latency of an idle instance. */
const idleUs = 500;
/** Fewer bytes give no reliable bandwidth. */
const sampleBytesMin = 2 ** 20;

/** The part of an instance snapshot that shows bandwidth and latency. */
type TransferSnapshot = Pick<InstanceSnapshot, 'running' | 'steps' | 'stepMsTotal'> & {
  readonly links?: readonly Pick<LinkSnapshot, 'to' | 'bytesPerSecond'>[];
  readonly sent?: Pick<NonNullable<InstanceSnapshot['sent']>, 'bytes' | 'copySeconds'>;
  readonly tiers?:
    | { readonly moved?: { readonly ssdReadBytes: number; readonly ssdReadSeconds: number } | undefined }
    | undefined;
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
  /** (instances): links to others with a recent measurement. */
  readonly #links: ReadonlyMap<number, TransferEnd>[];

  constructor(instances: number, bytesPerToken: number) {
    this.#ends = Array.from({ length: instances }, () => new LearnedEnd());
    this.#unreachable = Array.from({ length: instances }, () => new Set());
    this.#links = Array.from({ length: instances }, () => new Map());
    const link = (from: number, to: number): TransferEnd | undefined => this.#links[from]?.get(to);
    const reaches = (from: number, to: number): boolean => !this.#unreachable[from].has(to);
    this.config = { ends: this.#ends, linkBytesPerSecond: undefined, bytesPerToken, reaches, link };
    this.ssds = { ends: this.#ends, bytesPerToken };
  }

  /** @param links indices of peers as the gateway numbers them */
  observe(instance: number, snapshot: TransferSnapshot, links = snapshot.links): void {
    this.#ends[instance]?.observe(snapshot);
    // A figure that is no longer reported is out of date: the rates of the ends count again.
    const known = (links ?? []).filter(({ bytesPerSecond }) => bytesPerSecond !== undefined);
    this.#links[instance] = new Map(
      known.map(({ to, bytesPerSecond }) => [
        to,
        { bytesPerSecond: linkFigures({ peer: to, bytesPerSecond }).bytesPerSecond, us: 0 },
      ]),
    );
  }

  setUnreachable(from: number, peers: readonly number[]): void {
    this.#unreachable[from] = new Set(peers);
  }
}
