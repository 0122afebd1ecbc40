// The tiers below device memory in simulated time: what moving blocks takes, and what came of it.

import type { HostLink } from '../../core/cost/host-link.ts';
import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { InstanceSnapshot, TierSnapshot } from '../../core/protocol/ports.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Histogram } from '../report/histogram.ts';
import { type Latency, latencyMs } from '../report/outcome.ts';
import type { SimulationConfig } from './simulation-config.ts';
import { SimulatedSsd, type SsdRates } from './ssd.ts';

type Effect = InstanceEffect<undefined, LengthRequest>;
type Event = LengthEvent;

interface TieredInstance {
  /** Of one block's keys and values. */
  readonly blockBytes: number;
  readonly bytesPerToken: number;
  readonly ssd: SsdRates | undefined;
  readonly hostLink: HostLink | undefined;
}

export interface TierFigures {
  /** Prompt tokens from caches, by where they were. */
  readonly hitTokens: Readonly<Record<'device' | 'host' | 'ssd' | 'instance', number>>;
  /** Over the links between devices and host memory, and of SSD. */
  readonly bytes: Readonly<Record<'loaded' | 'stored' | 'ssdRead' | 'ssdWritten', number>>;
  /** What loads and stores added to steps that had any. */
  readonly exposedMs: Latency & { readonly total: number };
  /** At the end, over all instances. */
  readonly host: TierSnapshot;
  readonly ssd: TierSnapshot;
  /** Blocks that host memory evicted while too many were being written. */
  readonly lostBlocks: number;
  /** Device memory that sequences held, over time. */
  readonly deviceByteSeconds: number;
}

export class SimulatedTiers {
  readonly #instances: readonly TieredInstance[];
  readonly #ssds: readonly (SimulatedSsd | undefined)[];
  readonly #post: (timeUs: number, to: InstanceIndex, event: Event) => void;
  readonly #exposedUs = new Histogram();
  /** (instances): until when prompts that have landed are being loaded. */
  readonly #loadsUntilUs: Float64Array;
  #exposedUsTotal = 0;
  #loadedBytes = 0;
  #storedBytes = 0;

  constructor(
    { instances, blockTokens }: Pick<SimulationConfig, 'instances' | 'blockTokens'>,
    post: (timeUs: number, to: InstanceIndex, event: Event) => void,
  ) {
    this.#instances = instances.map(({ ssd, machine: { hostLink, cost } }) => {
      const bytesPerToken = cost.kvBytesPerToken;
      return { bytesPerToken, blockBytes: bytesPerToken * blockTokens, ssd, hostLink };
    });
    this.#ssds = instances.map(({ ssd }) => (ssd === undefined ? undefined : new SimulatedSsd(ssd)));
    this.#post = post;
    this.#loadsUntilUs = new Float64Array(instances.length);
  }

  /** What has landed in host memory is loaded beside the steps, one prompt after the other: how long until it is. */
  landed(nowUs: number, index: InstanceIndex, bytes: number): number {
    const { hostLink, bytesPerToken } = this.#instances[index];
    if (hostLink === undefined || bytes === 0) return 0;
    this.#loadedBytes += bytes;
    const endUs = Math.max(nowUs, this.#loadsUntilUs[index]) + Math.ceil(hostLink.moveUs(bytes / bytesPerToken));
    this.#loadsUntilUs[index] = endUs;
    return endUs - nowUs;
  }

  /** A step begins that loads and stores so much, which adds so much to its time. */
  ran(
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

  read(nowUs: number, index: InstanceIndex, { id, blocks, to }: Extract<Effect, { kind: 'readSsd' }>): void {
    const endUs = this.#ssds[index]?.read(nowUs, blocks * this.#instances[index].blockBytes) ?? nowUs;
    this.#post(endUs, index, { kind: 'loaded', id, source: 'ssd', to });
  }

  write(nowUs: number, index: InstanceIndex, { blocks }: Extract<Effect, { kind: 'writeSsd' }>): void {
    const endUs = this.#ssds[index]?.write(nowUs, blocks * this.#instances[index].blockBytes) ?? nowUs;
    this.#post(endUs, index, { kind: 'ssdWritten', blocks });
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
        ssdRead: this.#ssds.reduce((all, each) => all + (each?.readBytes ?? 0), 0),
        ssdWritten: this.#ssds.reduce((all, each) => all + (each?.writtenBytes ?? 0), 0),
      },
      exposedMs: { total: this.#exposedUsTotal / 1000, ...latencyMs(this.#exposedUs) },
      host: tier('host'),
      ssd: tier('ssd'),
      lostBlocks: sum(({ lostBlocks }) => lostBlocks),
      deviceByteSeconds: snapshots.reduce(
        (all, { usedPageSeconds }, i) => all + usedPageSeconds * this.#instances[i].blockBytes,
        0,
      ),
    };
  }
}
