// The state of the cluster over time: samples at equal distances in bounded memory for any length of run.

import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { PoolLoads } from '../../core/router/admission/admission-controller.ts';
import type { Debt } from '../engine/lending/cluster-lending.ts';
import { type ByteKind, byteKinds, type Link, type Network } from '../network/network.ts';
import type { Outcome } from './outcome.ts';

const samplesMax = 512;
const firstIntervalUs = 100_000;

/** The state that is sampled between events. */
export interface RecordedSimulation {
  readonly nowUs: number;
  readonly outcome: Outcome;
  readonly cluster: { readonly network: Pick<Network, 'moved' | 'trafficBy' | 'links' | 'nicBytesPerSecond'> };
  readonly lending: { readonly debts: readonly Debt[] } | undefined;
  advance(timeUs: number): void;
  loads(nowUs: number): PoolLoads | undefined;
  snapshots(): readonly InstanceSnapshot[];
}

/** Arrays are by instance, then by sample. */
export interface LoadOverTime {
  /** (samples) */
  readonly seconds: readonly number[];
  readonly running: readonly (readonly number[])[];
  readonly waiting: readonly (readonly number[])[];
  /** Share of the KV blocks that requests hold; cached blocks count as free. */
  readonly kvUsed: readonly (readonly number[])[];
  /** (samples): counts since the start. */
  readonly totals: Readonly<Record<TotalName, readonly number[]>>;
  /** (samples): bytes since the start, by purpose. */
  readonly bytesMoved: Readonly<Record<ByteKind, readonly number[]>>;
  /** Share of its NIC that an instance uses for sending, and for receiving, from each sample to the next. */
  readonly nicSent: readonly (readonly number[])[];
  readonly nicReceived: readonly (readonly number[])[];
  /** Over the whole run. */
  readonly links: readonly Link[];
  /** (samples): debts as (debtor, creditor, blocks); empty without lending. */
  readonly debts: readonly (readonly (readonly [number, number, number])[])[];
  /** (samples): filled share of each tier, over all instances; empty without the tier. */
  readonly tiers: Readonly<Record<TierName, readonly number[]>>;
  /** (samples): predicted times over the SLO; empty where no request had one. */
  readonly poolLoads: readonly PoolLoads[];
}

const totalNames = ['completed', 'refused', 'cachedTokens', 'computedTokens', 'outputTokens', 'preemptions'] as const;
type TotalName = (typeof totalNames)[number];

const tierNames = ['device', 'host', 'ssd'] as const;
type TierName = (typeof tierNames)[number];

interface Sample {
  readonly atUs: number;
  readonly running: Int32Array;
  readonly waiting: Int32Array;
  readonly kvUsed: Float32Array;
  readonly totals: Readonly<Record<TotalName, number>>;
  readonly bytesMoved: Readonly<Record<ByteKind, number>>;
  readonly traffic: ReturnType<Network['trafficBy']>;
  readonly debts: readonly Debt[];
  readonly loads: PoolLoads | undefined;
  readonly tiers: Readonly<Record<TierName, number | undefined>>;
}

/** Samples between events, so that a run with it is the same as one without. Drops every other sample when there are too many. */
export class LoadRecorder {
  readonly #simulation: RecordedSimulation;
  #samples: Sample[] = [];
  #intervalUs = firstIntervalUs;
  #nextUs = 0;

  constructor(simulation: RecordedSimulation) {
    this.#simulation = simulation;
  }

  /** Takes the samples that are due before `timeUs`. */
  advance(timeUs: number): void {
    while (this.#nextUs < timeUs) {
      this.#simulation.advance(this.#nextUs);
      this.#samples.push(this.#sample(this.#nextUs));
      this.#nextUs += this.#intervalUs;
      if (this.#samples.length === samplesMax) this.#thin();
    }
  }

  /**
   * The run is over: drops samples after its end, or less than half an interval before it (rates over so short a time are
   * far above the others), and adds its end as the last sample.
   */
  close(): void {
    const endUs = this.#simulation.nowUs;
    const lastUs = endUs - this.#intervalUs / 2;
    this.#samples = this.#samples.filter(({ atUs }, i) => atUs < endUs && (i === 0 || atUs <= lastUs));
    this.#samples.push(this.#sample(endUs));
  }

  load(): LoadOverTime {
    const samples = this.#samples;
    const instances = samples[0]?.running.length ?? 0;
    const by = (field: 'running' | 'waiting' | 'kvUsed', digits: number) =>
      Array.from({ length: instances }, (_, i) => samples.map((sample) => Number(sample[field][i].toFixed(digits))));
    return {
      seconds: samples.map(({ atUs }) => atUs / 1e6),
      running: by('running', 0),
      waiting: by('waiting', 0),
      kvUsed: by('kvUsed', 3),
      totals: record(totalNames, (name) => samples.map(({ totals }) => totals[name])),
      tiers: record(tierNames, (name) => samples.flatMap(({ tiers }) => tiers[name] ?? [])),
      poolLoads: samples.some(({ loads }) => loads !== undefined) ? samples.map(({ loads }) => loads ?? none) : [],
      bytesMoved: record(byteKinds, (kind) => samples.map(({ bytesMoved }) => bytesMoved[kind])),
      nicSent: this.#nicShares('sent'),
      nicReceived: this.#nicShares('received'),
      links: this.#simulation.cluster.network.links,
      debts:
        this.#simulation.lending === undefined
          ? []
          : samples.map(({ debts }) =>
              debts.map(({ debtor, creditor, blocks }) => [debtor, creditor, blocks] as const),
            ),
    };
  }

  #nicShares(direction: 'sent' | 'received'): readonly (readonly number[])[] {
    const samples = this.#samples;
    return this.#simulation.cluster.network.nicBytesPerSecond.map((bytesPerSecond, i) =>
      samples.map(({ atUs, traffic }, at) => {
        const next = samples[at + 1] ?? samples[at];
        const capacityBytes = (bytesPerSecond * (next.atUs - atUs)) / 1e6;
        return capacityBytes === 0
          ? 0
          : Number(((next.traffic[direction][i] - traffic[direction][i]) / capacityBytes).toFixed(3));
      }),
    );
  }

  #sample(atUs: number): Sample {
    const { network } = this.#simulation.cluster;
    const snapshots = this.#simulation.snapshots();
    const { completedRequests, refusedRequests } = this.#simulation.outcome;
    const sum = (of: (snapshot: InstanceSnapshot) => number) => snapshots.reduce((all, each) => all + of(each), 0);
    return {
      atUs,
      running: Int32Array.from(snapshots, ({ running }) => running),
      waiting: Int32Array.from(snapshots, ({ waiting }) => waiting),
      kvUsed: Float32Array.from(snapshots, ({ pages }) => pages.used / pages.total),
      totals: {
        completed: completedRequests,
        refused: refusedRequests,
        cachedTokens: sum(({ cachedTokens }) => cachedTokens),
        computedTokens: sum(({ computedPromptTokens }) => computedPromptTokens),
        outputTokens: sum(({ generatedTokens }) => generatedTokens),
        preemptions: sum(({ preemptions }) => preemptions),
      },
      bytesMoved: { ...network.moved },
      traffic: network.trafficBy(atUs),
      debts: this.#simulation.lending?.debts ?? [],
      loads: this.#simulation.loads(atUs),
      tiers: filled(snapshots),
    };
  }

  #thin(): void {
    this.#samples = this.#samples.filter((_, i) => i % 2 === 0);
    this.#intervalUs *= 2;
  }
}

/** Cached blocks count as filled. */
function filled(snapshots: readonly InstanceSnapshot[]): Sample['tiers'] {
  const blocks = { device: 0, host: 0, ssd: 0 };
  const capacity = { device: 0, host: 0, ssd: 0 };
  for (const { pages, tiers } of snapshots) {
    blocks.device += pages.used + pages.cached;
    capacity.device += pages.total;
    blocks.host += tiers?.host.blocks ?? 0;
    capacity.host += tiers?.host.capacity ?? 0;
    blocks.ssd += tiers?.ssd.blocks ?? 0;
    capacity.ssd += tiers?.ssd.capacity ?? 0;
  }
  return record(tierNames, (name) => {
    return capacity[name] === 0 ? undefined : Number((blocks[name] / capacity[name]).toFixed(3));
  });
}

const none: PoolLoads = { prefill: 0, decode: 0 };

function record<K extends string, T>(names: readonly K[], of: (name: K) => T): Record<K, T> {
  return Object.fromEntries(names.map((name) => [name, of(name)])) as Record<K, T>;
}
