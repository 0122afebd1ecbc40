// Chaos runs of requests: one seed makes one cluster, what is asked of it and what goes wrong; any broken rule throws.

import { RooflineCost } from '../../core/cost/roofline.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import { admissionKinds } from '../../core/router/admission/admission-policy.ts';
import { placementKinds } from '../../core/router/placement/placement.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { Prng } from '../../util/prng.ts';
import { type InstanceSpec, Simulation, type SimulationConfig } from '../engine/simulation.ts';
import { type Fault, type FaultName, type FaultPlan, faultNames } from './faults.ts';
import { type RequestWorld, withLending } from './lending-worlds.ts';

const blockTokens = 16;
/** Faults and arrivals last so long; then everything comes to an end. */
const chaosUs = 3_000_000;
const restUs = 12_000_000;
const lendingRestUs = 35_000_000;
const settleUs = 2_000_000;
/** Stores give up what was lost on its way. */
const storeSettleUs = 13_000_000;

const cost = new RooflineCost({
  model: {
    ...{ layers: 2, hidden: 256, heads: 4, kvHeads: 2, headDim: 64, intermediate: 512 },
    ...{ gated: true, vocabulary: 1000, tiedHead: true },
  },
  device: {
    ...{ memoryBytes: 8e6, memoryBytesPerSecond: 1e9, operationsPerSecond: 1e10 },
    ...{ linkBytesPerSecond: 1e9, linkUs: 1 },
  },
  efficiency: { compute: 1, memory: 1, link: 1, stepUs: 500, layerUs: 1_760 },
  ...{ tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, kvMemoryShare: 1 },
});

/** More layers, which take so many times as long. */
const deepCosts = [1, 1.5, 3].map(
  (slowness) =>
    new RooflineCost({
      model: {
        ...{ layers: 6, hidden: 256, heads: 4, kvHeads: 2, headDim: 64, intermediate: 512 },
        ...{ gated: true, vocabulary: 1000, tiedHead: true },
      },
      device: {
        ...{ memoryBytes: 2e7, memoryBytesPerSecond: 1e9, operationsPerSecond: 1e10 },
        ...{ linkBytesPerSecond: 1e9, linkUs: 1 },
      },
      efficiency: { compute: 1, memory: 1, link: 1, stepUs: 500, layerUs: 1_000 * slowness },
      ...{ tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, kvMemoryShare: 1 },
    }),
);

export interface RequestCounts {
  readonly faults: Map<FaultName, number>;
  /** By `fate message`. */
  readonly met: Map<string, number>;
  requests: number;
  completed: number;
  /** Prompts that went to groups. */
  groups: number;
  /** Blocks that went to creditors, and that were lost there. */
  movedBlocks: number;
  lostBlocks: number;
  /** To host memory. */
  hostBlocks: number;
  events: number;
}

/** Handlers of messages that met a fate: each of them is to run in a soak. */
export const requestHandlers: readonly string[] = [
  ...[
    ...['cancel', 'ended', 'enlist', 'journal', 'prefilled', 'report', 'reserve', 'snapshot', 'submit', 'tokens'],
  ].map((message) => `lost ${message}`),
  ...['enlist', 'enlisted', 'release', 'reserve', 'started', 'submit', 'tokens'].map((message) => `doubled ${message}`),
  ...[
    ...['cancel', 'ended', 'journal', 'released', 'prefilled', 'release', 'report', 'reserve', 'reserved', 'snapshot'],
    ...['started', 'submit', 'taken', 'tokens', 'unable'],
  ].map((message) => `late ${message}`),
  ...[
    ...['cancel', 'ended', 'fetch', 'journal', 'prefilled', 'release', 'report', 'reserve', 'reserved', 'snapshot'],
    ...['started', 'submit', 'taken', 'tokens', 'unwanted'],
  ].map((message) => `orphan ${message}`),
];

function anyTime(kind: Fault['kind'], changes: Partial<Fault>): Fault {
  const nothing = { ratio: 0, byUs: 0, atUs: undefined, everyUs: undefined, forUs: Number.POSITIVE_INFINITY };
  return { ...nothing, instances: undefined, factor: 4, kind, ...changes };
}

function planOf(seed: number, prng: Prng): FaultPlan {
  const times = { reportUs: 100_000, silentUs: 500_000, timeoutUs: 25_000_000, triesMax: 60 };
  const outage = { forUs: 500_000 };
  const all = [
    anyTime('loss', { ratio: 0.04 }),
    anyTime('duplication', { ratio: 0.06 }),
    anyTime('delay', { ratio: 0.08, byUs: 150_000 }),
    anyTime('crash', { everyUs: 1_200_000, ...outage }),
    anyTime('partition', { everyUs: 2_000_000, ...outage }),
    anyTime('slow', { everyUs: 1_500_000, ...outage }),
    anyTime('conductor', { everyUs: 5_000_000 }),
  ];
  return { seed, times, faults: all.filter(() => prng.chance(0.7)) };
}

function instancesOf(prng: Prng, rechecks: boolean, tokensMax: number): readonly InstanceSpec[] {
  const nic = { bytesPerSecond: 10 ** prng.integer(6, 9), us: prng.integer(10, 2_000) };
  const machine = {
    ...({ cost, blockTokens, eviction: 'lru', coalesce: prng.chance(0.8), blocks: prng.integer(20, 40) } as const),
    limits: { tokensMax, logitRowsMax: 33, sequencesMax: 8, stepUsDecoding: 20_000, stepUsPrefill: 100_000 },
    handOff: { layerWise: prng.chance(0.7), landingTokens: prng.integer(160, 600), rechecks },
    ...(prng.chance(0.3) && { tiers: { hostBlocks: prng.integer(10, 60), ssdBlocks: 0 } }),
  };
  const of = (role: InstanceSpec['role'], count: number): InstanceSpec[] =>
    Array.from({ length: count }, () => ({ role, nic, machine }));
  if (prng.chance(0.4)) return of('mixed', prng.integer(2, 4));
  return [...of('prefill', prng.integer(1, 3)), ...of('decode', prng.integer(1, 3))];
}

function traceOf(prng: Prng): readonly TraceRequest[] {
  const trace: TraceRequest[] = [];
  for (let atUs = prng.exponentialUs(60_000); atUs < chaosUs; atUs += prng.exponentialUs(60_000)) {
    const index = trace.length;
    const inputTokens = prng.integer(1, 150);
    const family = prng.integer(0, 3);
    const blocks = Int32Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
      i < Math.floor(inputTokens / blockTokens) - 1 ? 1000 * family + i : 1_000_000 + 100 * index + i,
    );
    trace.push({ index, arrivalUs: atUs, inputTokens, outputTokens: prng.integer(1, 60), blocks });
  }
  return trace;
}

/** Where there are enough instances, groups compute some of the prompts. */
function pipelineOf({ instances }: SimulationConfig, prng: Prng): SimulationConfig['pipeline'] {
  const prefills = instances.filter(({ role }) => role === 'prefill').length;
  return prefills < 2 ? undefined : { members: prng.integer(2, prefills), tokensOver: prng.integer(0, 60) };
}

export function requestWorld(seed: number): RequestWorld {
  const prng = new Prng(seed, 5);
  const admission = prng.chance(0.3) ? admissionKinds[prng.integer(1, 3)] : 'none';
  const slo = { ttft: { us: 400_000 }, tbt: { us: 30_000 } };
  // Groups are worth it only where steps are short beside prompts.
  const groups = new Prng(seed, 7);
  const grouped = groups.chance(0.6);
  const config: SimulationConfig = {
    instances: instancesOf(prng, admission !== 'none', grouped ? 32 : 128),
    linkBytesPerSecond: prng.chance(0.5) ? 10 ** prng.integer(6, 8) : undefined,
    ...{ blockTokens, queueMax: 1_000, checking: true },
    placement: {
      kind: placementKinds[prng.integer(0, placementKinds.length - 1)],
      seed: [seed, 1],
      balancingThreshold: prng.integer(1, 3),
    },
    admission: { kind: admission, slo: admission === 'none' ? undefined : slo, decodeUs: 300_000 },
    faults: planOf(seed, prng),
  };
  const pipeline = grouped ? pipelineOf(config, groups) : undefined;
  const even = { config: { ...config, pipeline }, trace: traceOf(prng) };
  const world = withMore(withUnequal(even, new Prng(seed, 11)), new Prng(seed, 8));
  const lends = new Prng(seed, 9);
  const lending = lends.chance(0.5) ? withLending(world, lends, anyTime('gmanager', { everyUs: 2_500_000 })) : world;
  return withStores(lending, new Prng(seed, 10));
}

const roleSwitch: NonNullable<SimulationConfig['admission']['roleSwitch']> = {
  ...{ sustainUs: 50_000, dwellUs: 150_000, gain: 1.1, loadMin: 0.05 },
  ...{ lookUs: 20_000, windowUs: 200_000 },
};

/** In some worlds members of groups compute at different speeds. */
function withUnequal({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  if (config.pipeline === undefined || !prng.chance(0.5)) return { config, trace };
  const instances = config.instances.map(({ machine, ...spec }) => ({
    ...spec,
    machine: { ...machine, cost: deepCosts[prng.integer(0, deepCosts.length - 1)] },
  }));
  return { config: { ...config, instances }, trace };
}

/** Some worlds have one or the other of all else that instances do. */
function withMore({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  const ssd = prng.chance(0.5) ? { readBytesPerSecond: 1e7, writeBytesPerSecond: 1e7 } : undefined;
  const ssdBlocks = ssd === undefined ? 0 : prng.integer(10, 80);
  const instances = config.instances.map(({ machine, ...spec }) => {
    const { tiers } = machine;
    return {
      ...spec,
      ssd,
      machine: { ...machine, pinShare: 0.3, ...(tiers !== undefined && { tiers: { ...tiers, ssdBlocks } }) },
    };
  });
  const { slo } = config.admission;
  const admission = {
    ...config.admission,
    ...(prng.chance(0.3) && { inlineTokens: prng.integer(16, 64) }),
    ...(slo !== undefined && prng.chance(0.4) && { classes: new Map([['slow', { completion: { us: 2_000_000 } }]]) }),
    ...(slo !== undefined && prng.chance(0.5) && { roleSwitch }),
  };
  const jobs = prng.chance(0.3);
  const pins = prng.chance(0.3);
  const more = trace.map((request) => {
    if (jobs && prng.chance(0.2)) return { ...request, batch: true };
    if (pins && prng.chance(0.1)) return { ...request, pinUs: prng.integer(100_000, 800_000) };
    return admission.classes !== undefined && prng.chance(0.3) ? { ...request, sloClass: 'slow' } : request;
  });
  return { config: { ...config, instances, admission }, trace: more };
}

/** In some worlds stores keep what the others compute; they neither lend nor borrow. */
function withStores({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  const [first] = config.instances;
  if (first === undefined || !prng.chance(0.4)) return { config, trace };
  const stores = Array.from({ length: prng.integer(1, 2) }, (_, i) => ({
    instance: config.instances.length + i,
    key: i,
  }));
  const { handOff: _, borrowing: __, ...machine } = first.machine;
  const ssd = { readBytesPerSecond: 1e7, writeBytesPerSecond: 1e7 };
  const store = (): InstanceSpec => ({
    ...{ role: 'store', nic: first.nic, ssd },
    machine: {
      ...{ ...machine, blocks: 0, pinShare: 0, keeps: true },
      tiers: { hostBlocks: prng.integer(4, 60), ssdBlocks: prng.chance(0.5) ? prng.integer(10, 80) : 0 },
    },
  });
  const others = config.instances.map((spec) => ({ ...spec, machine: { ...spec.machine, stores } }));
  return { config: { ...config, instances: [...others, ...stores.map(store)] }, trace };
}

/** In some worlds prompts are preempted while they leave: some come before others, memory is short and the way is long. */
function withHaste({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  if (config.pipeline !== undefined || !prng.chance(0.5)) return { config, trace };
  const instances = config.instances.map(({ machine, ...spec }) => {
    const limits = { ...machine.limits, tokensMax: prng.integer(32, 48) };
    const handOff = machine.handOff && { ...machine.handOff, layerWise: true };
    const keeps = spec.role === 'store' || config.lending !== undefined;
    const blocks = keeps ? machine.blocks : prng.integer(14, 18);
    return { ...spec, machine: { ...machine, limits, blocks, ...(handOff && { handOff }) } };
  });
  const hasty = trace.map((request) => (prng.chance(0.3) ? { ...request, priority: 1 } : request));
  return { config: { ...config, instances, linkBytesPerSecond: 1e6 }, trace: hasty };
}

/** There is time enough for each. */
function checkPatience({ id }: LengthRequest, event: GenerationEvent): void {
  if (event.kind === 'failed' && event.message.includes('not ended in time'))
    throw new Error(`Requests broken: request ${id} was given up: ${event.message}`);
}

export function hastyWorld(seed: number): RequestWorld {
  return withHaste(requestWorld(seed), new Prng(seed, 12));
}

/** Runs one seed to its end. Throws on the first broken rule. */
export function runRequestChaos(seed: number): RequestCounts {
  const { config, trace } = hastyWorld(seed);
  const prng = new Prng(seed, 6);
  const simulation = new Simulation({ ...config, inspect: { after: () => {}, ended: checkPatience } });
  for (const request of trace) {
    simulation.arrive(request);
    if (prng.chance(0.08)) simulation.cancel(String(prng.integer(0, request.index)));
  }
  simulation.advance(chaosUs);
  simulation.inside.faults?.heal();
  // Then there is time for whoever was given up wrongly to be told, and for orphans to be found.
  let untilUs = chaosUs;
  const endUs = chaosUs + (config.lending === undefined ? restUs : lendingRestUs);
  for (; simulation.live > 0 && untilUs < endUs; untilUs += 100_000) simulation.advance(untilUs);
  const keeps = config.instances.some(({ role }) => role === 'store');
  simulation.advance(untilUs + (keeps ? storeSettleUs : settleUs));
  const { checks, outcome, fates, inside } = simulation;
  checks?.checkAtRest();
  simulation.lending?.checkAtRest();
  if (simulation.lending?.isPaidBack === false) throw new Error('Lending broken: nothing runs, and some is lent');
  return {
    faults: new Map(inside.faults?.injected),
    met: new Map(fates.counts),
    requests: outcome.requests,
    completed: outcome.completedRequests,
    groups: inside.conductor.groupPrefills,
    movedBlocks: sumOf(simulation, 'movedBlocks'),
    lostBlocks: sumOf(simulation, 'lostBlocks'),
    hostBlocks: sumOf(simulation, 'hostBlocks'),
    events: checks?.events ?? 0,
  };
}

function sumOf({ lending }: Simulation, name: 'movedBlocks' | 'lostBlocks' | 'hostBlocks'): number {
  return (lending?.totals ?? []).reduce((sum, totals) => sum + totals[name], 0);
}

/** Sums of several runs. */
export function addRequestCounts(sum: RequestCounts, counts: RequestCounts): void {
  for (const [fault, count] of counts.faults) sum.faults.set(fault, (sum.faults.get(fault) ?? 0) + count);
  for (const [key, count] of counts.met) sum.met.set(key, (sum.met.get(key) ?? 0) + count);
  sum.requests += counts.requests;
  sum.completed += counts.completed;
  sum.groups += counts.groups;
  sum.movedBlocks += counts.movedBlocks;
  sum.lostBlocks += counts.lostBlocks;
  sum.hostBlocks += counts.hostBlocks;
  sum.events += counts.events;
}

/** Faults that were never injected and handlers that never ran: a soak that leaves any has shown nothing about it. */
export function neverInRequests({ faults, met }: RequestCounts): readonly string[] {
  return [...faultNames.filter((fault) => !faults.has(fault)), ...requestHandlers.filter((key) => !met.has(key))];
}
