// The configurations of request chaos: each seed makes one small cluster, its requests and its faults.
import { queryRowBytes } from '../../core/cost/dist-attention.ts';
import { RooflineCost } from '../../core/cost/roofline.ts';
import type { LayeredSparsity } from '../../core/kvcache/sparsity/sparse-plan.ts';
import { defaultLendingTimes } from '../../core/lending/times.ts';
import { admissionKinds } from '../../core/router/admission/admission-policy.ts';
import { placementKinds } from '../../core/router/placement/placement.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { Prng } from '../../util/prng.ts';
import type { InstanceSpec, SimulationConfig } from '../engine/simulation-config.ts';
import { type FaultPlan, fault } from './fault-plan.ts';

export interface RequestWorld {
  readonly config: SimulationConfig;
  readonly trace: readonly TraceRequest[];
}

/** Duration of the arrivals and of the injection of faults. */
export const chaosUs = 3_000_000;

export const blockTokens = 16;

function costOf(layers: number, layerUs: number, memoryBytes: number): RooflineCost {
  return new RooflineCost({
    model: {
      ...{ layers, hidden: 256, heads: 4, kvHeads: 2, headDim: 64, intermediate: 512 },
      ...{ gated: true, vocabulary: 1000, tiedHead: true },
    },
    device: {
      ...{ memoryBytes, memoryBytesPerSecond: 1e9, operationsPerSecond: 1e10 },
      ...{ linkBytesPerSecond: 1e9, linkUs: 1 },
    },
    efficiency: { compute: 1, memory: 1, link: 1, stepUs: 500, layerUs },
    ...{ tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, memoryShare: 1, stepRows: 0 },
  });
}

export const cost = costOf(2, 1_760, 8e6);
/** More layers, at different speeds. */
const deepCosts = [1, 1.5, 3].map((slowness) => costOf(6, 1_000 * slowness, 2e7));

/** Random streams of the seed: one for each aspect, so that the draws of one do not change another. */
const streams = {
  base: 5,
  groups: 7,
  extras: 8,
  lending: 9,
  stores: 10,
  speeds: 11,
  preemption: 12,
  sparsity: 14,
  sparseRoles: 15,
  hotPrefixes: 16,
};

export function planOf(seed: number, prng: Prng): FaultPlan {
  const times = { reportUs: 100_000, silentUs: 500_000, timeoutUs: 25_000_000, attemptsMax: 60 };
  const outage = { forUs: 500_000 };
  const all = [
    fault('loss', { ratio: 0.04 }),
    fault('duplication', { ratio: 0.06 }),
    fault('delay', { ratio: 0.08, byUs: 150_000 }),
    fault('crash', { everyUs: 1_200_000, ...outage }),
    fault('partition', { everyUs: 2_000_000, ...outage }),
    fault('slow', { everyUs: 1_500_000, ...outage }),
    fault('conductor', { everyUs: 5_000_000 }),
  ];
  return { seed, times, faults: all.filter(() => prng.chance(0.7)) };
}

function instancesOf(prng: Prng, rechecksAdmission: boolean, tokensMax: number): readonly InstanceSpec[] {
  const nic = { bytesPerSecond: 10 ** prng.integer(6, 9), us: prng.integer(10, 2_000) };
  const machine = {
    ...({ cost, blockTokens, eviction: 'lru', coalesce: prng.chance(0.8), blocks: prng.integer(20, 40) } as const),
    limits: { tokensMax, logitRowsMax: 33, sequencesMax: 8, stepUsDecoding: 20_000, stepUsPrefill: 100_000 },
    handOff: { layerWise: prng.chance(0.7), receiveTokens: prng.integer(160, 600), rechecksAdmission },
    ...(prng.chance(0.3) && { tiers: { hostBlocks: prng.integer(10, 60), ssdBlocks: 0 } }),
  };
  const of = (role: InstanceSpec['role'], count: number): InstanceSpec[] =>
    Array.from({ length: count }, () => ({ role, nic, machine }));
  if (prng.chance(0.4)) return of('mixed', prng.integer(2, 4));
  return [...of('prefill', prng.integer(1, 3)), ...of('decode', prng.integer(1, 3))];
}

export function traceOf(prng: Prng): readonly TraceRequest[] {
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

/** Groups compute some prompts, where there are enough instances. */
function pipelineOf({ instances }: SimulationConfig, prng: Prng): SimulationConfig['pipeline'] {
  const prefills = instances.filter(({ role }) => role === 'prefill').length;
  return prefills < 2 ? undefined : { members: prng.integer(2, prefills), tokensOver: prng.integer(0, 60) };
}

/** A cluster with random aspects of all that instances do. */
export function requestWorld(seed: number): RequestWorld {
  const prng = new Prng(seed, streams.base);
  const admission = prng.chance(0.3) ? admissionKinds[prng.integer(1, 3)] : 'none';
  const slo = { ttft: { us: 400_000 }, tbt: { us: 30_000 } };
  // Groups are faster only where prompts take many steps.
  const groups = new Prng(seed, streams.groups);
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
  const aspects = [
    [withSpeeds, streams.speeds],
    [withExtras, streams.extras],
    [withLending, streams.lending],
    [withStores, streams.stores],
  ] as const;
  return aspects.reduce<RequestWorld>((world, [add, stream]) => add(world, new Prng(seed, stream)), {
    config: { ...config, pipeline },
    trace: traceOf(prng),
  });
}

const roleSwitch: NonNullable<SimulationConfig['admission']['roleSwitch']> = {
  ...{ sustainUs: 50_000, dwellUs: 150_000, gain: 1.1, loadMin: 0.05 },
  ...{ intervalUs: 20_000, windowUs: 200_000 },
};

/** In some worlds the members of groups compute at different speeds. */
function withSpeeds({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  if (config.pipeline === undefined || !prng.chance(0.5)) return { config, trace };
  const instances = config.instances.map(({ machine, ...spec }) => ({
    ...spec,
    machine: { ...machine, cost: deepCosts[prng.integer(0, deepCosts.length - 1)] },
  }));
  return { config: { ...config, instances }, trace };
}

/** Some worlds have SSDs, pins, batch jobs, SLO classes, inline prefill or role switches. */
function withExtras({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
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
  const labelled = trace.map((request) => {
    if (jobs && prng.chance(0.2)) return { ...request, batch: true };
    if (pins && prng.chance(0.1)) return { ...request, pinUs: prng.integer(100_000, 800_000) };
    return admission.classes !== undefined && prng.chance(0.3) ? { ...request, sloClass: 'slow' } : request;
  });
  return { config: { ...config, instances, admission }, trace: labelled };
}

/** In some worlds stores keep the blocks of the other instances; stores neither lend nor borrow. */
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
      ...{ ...machine, blocks: 0, pinShare: 0, isStore: true },
      tiers: { hostBlocks: prng.integer(4, 60), ssdBlocks: prng.chance(0.5) ? prng.integer(10, 80) : 0 },
    },
  });
  const others = config.instances.map((spec) => ({ ...spec, machine: { ...spec.machine, stores } }));
  return { config: { ...config, instances: [...others, ...stores.map(store)] }, trace };
}

/** In some worlds prompts are preempted while they leave: with priorities, little memory and a slow link. */
function withPreemption({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  if (config.pipeline !== undefined || !prng.chance(0.5)) return { config, trace };
  const instances = config.instances.map(({ machine, ...spec }) => {
    const limits = { ...machine.limits, tokensMax: prng.integer(32, 48) };
    const handOff = machine.handOff && { ...machine.handOff, layerWise: true };
    const keepsBlocks = spec.role === 'store' || config.lending !== undefined;
    const blocks = keepsBlocks ? machine.blocks : prng.integer(14, 18);
    return { ...spec, machine: { ...machine, limits, blocks, ...(handOff && { handOff }) } };
  });
  const prioritised = trace.map((request) => (prng.chance(0.3) ? { ...request, priority: 1 } : request));
  return { config: { ...config, instances, linkBytesPerSecond: 1e6 }, trace: prioritised };
}

/** The world of a chaos run. */
export function preemptingWorld(seed: number): RequestWorld {
  return withPreemption(requestWorld(seed), new Prng(seed, streams.preemption));
}

/** As `preemptingWorld`; in some worlds hot prefixes are copied ahead of prompts. */
export function copyingWorld(seed: number): RequestWorld {
  return withHotPrefixes(preemptingWorld(seed), new Prng(seed, streams.hotPrefixes));
}

function withHotPrefixes({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  if (!prng.chance(0.3)) return { config, trace };
  const kind = prng.chance(0.8) ? 'local-cache-only' : 'cache-aware';
  const placement = { ...config.placement, kind, copiesHotPrefixes: true } as const;
  // Bursts of prompts with a short prefix that one instance has, since a copy takes an eighth of a memory at most.
  const bursts = Array.from({ length: 60 }, (_, i): TraceRequest => {
    const [burst, place] = [Math.floor(i / 15), i % 15];
    const firstUs = (burst * chaosUs) / 5;
    const arrivalUs = place === 0 ? firstUs : firstUs + 300_000 + 500 * place;
    const blocks = Int32Array.of(500_000 + 2 * burst, 500_001 + 2 * burst, 1_000_000 + 100 * (trace.length + i));
    return { index: 0, arrivalUs, inputTokens: 2 * blockTokens + 4, outputTokens: 4, blocks };
  });
  const arrivals = [...trace, ...bursts].sort((a, b) => a.arrivalUs - b.arrivalUs);
  return { config: { ...config, placement }, trace: arrivals.map((request, index) => ({ ...request, index })) };
}

/** A world in which instances keep only some tokens of requests in sparse layers. */
export function sparseWorld(seed: number): RequestWorld {
  const prng = new Prng(seed, streams.sparsity);
  const { config, trace } = preemptingWorld(seed);
  const budget = prng.integer(12, 60);
  const isListed = prng.chance(0.2);
  const isWhole = !isListed && prng.chance(0.4);
  const shape = isListed ? [budget] : prng.chance(0.5) ? ('pyramid' as const) : ('uniform' as const);
  const sparsity: LayeredSparsity = {
    ...{ shape, budget: isListed ? undefined : budget, recent: prng.integer(2, 8), observed: prng.integer(1, 24) },
    ...{ pooling: { kind: 'max', width: 1 }, headReduce: 'max', compactEvery: prng.chance(0.5) ? 0 : 8 },
    ...{ keepsFull: prng.chance(0.7), slotPagesOfState: prng.integer(2, 40) },
    sparseLayers: [isWhole, true],
  };
  // In some worlds prompts are handed off, stores keep blocks, pages are chosen, and requests with full KV borrow.
  const more = new Prng(seed, streams.sparseRoles);
  const [keepsRoles, hasStores] = [more.chance(0.5), more.chance(0.5)];
  const chosen = !isListed && more.chance(0.2) ? { ...sparsity, pages: { topP: 1 }, observed: 1, recent: 0 } : sparsity;
  const lends = config.lending !== undefined && isWhole && more.chance(0.7);
  const instances = config.instances
    .filter(({ role }) => hasStores || role !== 'store')
    .map(({ role, nic, ssd, machine: { tiers, borrowing, stores, ...machine } }): InstanceSpec => {
      if (role === 'store') return { role, nic, ssd, machine: { ...machine, tiers, cost, sparsity: chosen } };
      const below = prng.chance(0.5) ? { tiers: { hostBlocks: prng.integer(10, 60), ssdBlocks: 0 } } : {};
      const own = { ...machine, ...below, ...(hasStores && { stores }), cost, sparsity: chosen };
      const blocks = prng.integer(24, 50);
      const memory = lends ? { borrowing, blocks: machine.blocks } : { blocks };
      return { role: keepsRoles ? role : 'mixed', nic, machine: { ...own, ...memory } };
    });
  const admission = { ...config.admission, ...(!keepsRoles && { roleSwitch: undefined }) };
  const others = { pipeline: undefined, lending: lends ? config.lending : undefined };
  const requests = lends
    ? trace.map((each) => (more.chance(0.5) ? { ...each, kvBudget: 'full' as const } : each))
    : undefined;
  return { config: { ...config, ...others, instances, admission }, trace: requests ?? traceOf(prng) };
}

/** KV pools so small that short requests fill them. */
const blocksMin = 12;
const blocksMax = 20;
const lentShareMax = 0.75;
const remoteAttentionPermilleMax = 300;
const rangeBlocks = 2;
const hostTokenUs = 5;
/** Receive buffers for most of the long prompts. */
const receiveFactor = 2;
/** Long requests wait for memory, one after another. */
const timeoutUs = 45_000_000;
/** In worlds with groups more requests are long. */
const groupTimeoutUs = 120_000_000;
const times = { ...defaultLendingTimes, settleUs: 200_000, remoteCacheUs: 800_000 };

/** In some worlds instances lend memory to one another, and some requests exceed any single instance. */
function withLending({ config, trace }: RequestWorld, prng: Prng): RequestWorld {
  if (!prng.chance(0.5)) return { config, trace };
  const blocks = prng.integer(blocksMin, blocksMax);
  const lendable = Math.floor(blocks * lentShareMax);
  const { length } = config.instances;
  const policy = {
    ...{
      lentShareMax,
      lowWaterBlocks: 2,
      highWaterBlocks: 7,
      recallBlocks: 1,
      loanBlocksMin: 2,
      remoteAttentionPermilleMax,
    },
    lookAheadUs: prng.chance(0.8) ? 100_000 : 0,
  };
  const hostBlocks = prng.chance(0.4) ? prng.integer(4, 12) : 0;
  const lendableHost = Math.floor((hostBlocks * lentShareMax) / rangeBlocks) * rangeBlocks;
  const instances = config.instances.map((spec, instance) => {
    const borrowableBlocks = (lendable + lendableHost) * (length - 1) + hostBlocks;
    const figures = { stagingBlocks: 8, hostBlocks, borrowableBlocks, rangeBlocks };
    const borrowing = { instance, policy, times, ...figures };
    const receiveTokens = spec.machine.handOff?.receiveTokens ?? 0;
    const handOff = spec.machine.handOff && { ...spec.machine.handOff, receiveTokens: receiveFactor * receiveTokens };
    return { ...spec, machine: { ...spec.machine, blocks, borrowing, ...(handOff && { handOff }) } };
  });
  const lending = {
    ...{ times, settles: true, settleBlocksMin: 1, rangeBlocks: 1, remoteAttentionPermilleMax, layers: 2 },
    seed: trace.length,
    hostTokenUs: config.instances.map(() => hostTokenUs),
    queryRowBytes: queryRowBytes({ layers: 2, heads: 4, headDim: 64 }),
  };
  const alone = blocks * config.blockTokens;
  const longer = trace.map((request) =>
    prng.chance(config.pipeline === undefined ? 0.1 : 0.25)
      ? withLength(request, prng.integer(alone, 2 * alone), config.blockTokens)
      : request,
  );
  const restarts = prng.chance(0.7);
  const faults = config.faults && {
    ...config.faults,
    times: { ...config.faults.times, timeoutUs: config.pipeline === undefined ? timeoutUs : groupTimeoutUs },
    faults: restarts ? [...config.faults.faults, fault('gmanager', { everyUs: 2_500_000 })] : config.faults.faults,
  };
  return { config: { ...config, instances, lending, faults }, trace: longer };
}

/** Extends a prompt by blocks that no other prompt has. */
function withLength(request: TraceRequest, inputTokens: number, blockTokens: number): TraceRequest {
  const { blocks, index } = request;
  const shared = Math.max(0, blocks.length - 2);
  const ids = Int32Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
    i < shared ? blocks[i] : 1_000_000 + 100 * index + i,
  );
  return { ...request, inputTokens, blocks: ids };
}
