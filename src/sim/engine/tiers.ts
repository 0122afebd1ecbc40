// The tiers below device memory in a simulation: the times of block transfers between them, and the figures of a run.

import type { HostLink } from '../../core/cost/host-link.ts';
import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { InstanceSnapshot, TierSnapshot } from '../../core/protocol/ports.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Histogram, type Latency, latencyMs } from '../report/histogram.ts';
import type { ClusterHost, SsdRates } from './simulation-config.ts';

type Effect = InstanceEffect<undefined, LengthRequest>;

interface TierHost extends ClusterHost {
  /** Delivers at that time, unless the instance restarts before. */
  deliverToInstanceAt(timeUs: number, index: InstanceIndex, event: LengthEvent): void;
}

interface TieredInstance {
  /** Keys and values of one block. */
  readonly blockBytes: number;
  /** Of one page: with sparse layers one layer of a block, else all of it. */
  readonly pageBytes: number;
  readonly bytesPerToken: number;
  readonly hostLink: HostLink | undefined;
  readonly ssd: SimulatedSsd | undefined;
}

export interface TierFigures {
  /** Prompt tokens from caches, by the tier that held them. */
  readonly hitTokens: Readonly<Record<'device' | 'host' | 'ssd' | 'instance', number>>;
  /** Over the links between devices and host memory, and of SSD. */
  readonly bytes: Readonly<Record<'loaded' | 'stored' | 'ssdRead' | 'ssdWritten', number>>;
  /** Time that loads and stores added to the steps that had any. */
  readonly exposedMs: Latency & { readonly total: number };
  /** At the end, over all instances. */
  readonly host: TierSnapshot;
  readonly ssd: TierSnapshot;
  /** Blocks that host memory evicted while too many writes were pending. */
  readonly lostBlocks: number;
  /** Device memory that sequences held, over time. */
  readonly deviceByteSeconds: number;
}

/** Reads run one after another in the order of the calls; so do writes, in parallel with the reads. */
class SimulatedSsd {
  readBytes = 0;
  writtenBytes = 0;
  readonly #rates: SsdRates;
  #readsUntilUs = 0;
  #writesUntilUs = 0;

  constructor(rates: SsdRates) {
    this.#rates = rates;
  }

  /** Returns the end of a read of these bytes. */
  read(nowUs: number, bytes: number): number {
    this.readBytes += bytes;
    this.#readsUntilUs =
      Math.max(nowUs, this.#readsUntilUs) + Math.ceil((bytes * 1e6) / this.#rates.readBytesPerSecond);
    return this.#readsUntilUs;
  }

  /** Returns the end of a write of these bytes. */
  write(nowUs: number, bytes: number): number {
    this.writtenBytes += bytes;
    this.#writesUntilUs =
      Math.max(nowUs, this.#writesUntilUs) + Math.ceil((bytes * 1e6) / this.#rates.writeBytesPerSecond);
    return this.#writesUntilUs;
  }
}

export class SimulatedTiers {
  readonly #host: TierHost;
  readonly #instances: readonly TieredInstance[];
  readonly #exposedUs = new Histogram();
  /** (instances): end of the loads of received prompts. */
  readonly #loadsUntilUs: Float64Array;
  #exposedUsTotal = 0;
  #loadedBytes = 0;
  #storedBytes = 0;

  constructor(host: TierHost) {
    const { instances, blockTokens } = host.config;
    this.#host = host;
    this.#instances = instances.map(({ ssd, machine: { hostLink, cost, sparsity } }) => {
      const bytesPerToken = cost.kvBytesPerToken;
      const blockBytes = bytesPerToken * blockTokens;
      const pageBytes = blockBytes / (sparsity?.sparseLayers.length ?? 1);
      return { bytesPerToken, blockBytes, pageBytes, hostLink, ssd: ssd && new SimulatedSsd(ssd) };
    });
    this.#loadsUntilUs = new Float64Array(instances.length);
  }

  /** Loads a prompt received in host memory, in parallel with steps, one prompt after another. Returns the time until it is loaded. */
  loadReceived(index: InstanceIndex, bytes: number): number {
    const { hostLink, bytesPerToken } = this.#instances[index];
    if (hostLink === undefined || bytes === 0) return 0;
    const { nowUs } = this.#host.queue;
    this.#loadedBytes += bytes;
    const endUs = Math.max(nowUs, this.#loadsUntilUs[index]) + Math.ceil(hostLink.moveUs(bytes / bytesPerToken));
    this.#loadsUntilUs[index] = endUs;
    return endUs - nowUs;
  }

  /** @param exposedUs time that the step's loads and stores add to it */
  stepStarted(
    index: InstanceIndex,
    { loadTokens, storeTokens }: Extract<Effect, { kind: 'runStep' }>,
    exposedUs: number,
  ): void {
    if (loadTokens + storeTokens === 0) return;
    const { bytesPerToken } = this.#instances[index];
    this.#loadedBytes += loadTokens * bytesPerToken;
    this.#storedBytes += storeTokens * bytesPerToken;
    this.#exposedUs.add(exposedUs);
    this.#exposedUsTotal += exposedUs;
  }

  read(index: InstanceIndex, { id, blocks, to }: Extract<Effect, { kind: 'readSsd' }>): void {
    const { nowUs } = this.#host.queue;
    const { ssd, blockBytes } = this.#instances[index];
    const endUs = ssd?.read(nowUs, blocks * blockBytes) ?? nowUs;
    this.#host.deliverToInstanceAt(endUs, index, { kind: 'loaded', id, source: 'ssd', to });
  }

  write(index: InstanceIndex, { blocks }: Extract<Effect, { kind: 'writeSsd' }>): void {
    const { nowUs } = this.#host.queue;
    const { ssd, blockBytes } = this.#instances[index];
    const endUs = ssd?.write(nowUs, blocks * blockBytes) ?? nowUs;
    this.#host.deliverToInstanceAt(endUs, index, { kind: 'ssdWritten', blocks });
  }

  /** Undefined where no instance has tiers. @param blockTokens tokens of a block */
  figures(snapshots: readonly InstanceSnapshot[], blockTokens: number): TierFigures | undefined {
    const tiered = snapshots.flatMap(({ tiers }) => (tiers === undefined ? [] : [tiers]));
    if (tiered.length === 0) return undefined;
    const sum = (of: (tiers: (typeof tiered)[number]) => number) => tiered.reduce((all, each) => all + of(each), 0);
    const tier = (name: 'host' | 'ssd') => ({
      blocks: sum((tiers) => tiers[name].blocks),
      capacity: sum((tiers) => tiers[name].capacity),
    });
    const cachedTokens = snapshots.reduce((all, each) => all + each.cachedTokens, 0);
    const host = sum(({ reads }) => reads.host) * blockTokens;
    const ssd = sum(({ reads }) => reads.ssd) * blockTokens;
    const instance = sum(({ reads }) => reads.instance) * blockTokens;
    return {
      hitTokens: { device: cachedTokens - host - ssd - instance, host, ssd, instance },
      bytes: {
        loaded: this.#loadedBytes,
        stored: this.#storedBytes,
        ssdRead: this.#instances.reduce((all, { ssd: each }) => all + (each?.readBytes ?? 0), 0),
        ssdWritten: this.#instances.reduce((all, { ssd: each }) => all + (each?.writtenBytes ?? 0), 0),
      },
      exposedMs: { total: this.#exposedUsTotal / 1000, ...latencyMs(this.#exposedUs) },
      host: tier('host'),
      ssd: tier('ssd'),
      lostBlocks: sum(({ lostBlocks }) => lostBlocks),
      deviceByteSeconds: snapshots.reduce(
        (all, { usedPageSeconds }, i) => all + usedPageSeconds * this.#instances[i].pageBytes,
        0,
      ),
    };
  }
}
