// Counters and gauges of several instances together, and whether their roles can serve requests.

import { sumOfAges } from '../../core/kvcache/block-ages.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type {
  AttentionWorkerSnapshot,
  BlockAges,
  InstanceSnapshot,
  LendingSnapshot,
  PrefixCopies,
  SparseSnapshot,
  TierSnapshot,
  TiersSnapshot,
} from '../../core/protocol/ports.ts';

/** The snapshot of an instance that has not started. */
export const emptySnapshot: InstanceSnapshot = {
  ready: false,
  waiting: 0,
  running: 0,
  pages: { total: 0, used: 0, cached: 0, free: 0 },
  promptTokens: 0,
  cachedTokens: 0,
  computedPromptTokens: 0,
  generatedTokens: 0,
  preemptions: 0,
  steps: 0,
  stepMsTotal: 0,
  evictedBlocks: 0,
  usedPageSeconds: 0,
};

/** The snapshot of a lost instance: its counters stay, its gauges are zero. */
export function snapshotAfterLoss({
  receivePages: _,
  blocks: _blocks,
  memory: _memory,
  lending,
  attentionWorkers,
  sparse,
  ...counted
}: InstanceSnapshot): InstanceSnapshot {
  const { ready, waiting, running, pages } = emptySnapshot;
  const nothing = {
    lentBlocks: 0,
    borrowedBlocks: 0,
    remoteBlocks: 0,
    remoteCachedBlocks: 0,
    isManager: false,
    links: [],
  };
  return {
    ...{ ...counted, ready, waiting, running, pages },
    ...(lending && { lending: { ...lending, ...nothing } }),
    ...(attentionWorkers && { attentionWorkers: attentionWorkers.map(workerAfterLoss) }),
    ...(sparse && { sparse: { ...sparse, sequences: 0, slotTokens: 0, slotPages: 0 } }),
  };
}

/** The figures of an instance with the counters of its earlier incarnations, which a restart sets to zero. */
export function withEarlier(earlier: InstanceSnapshot | undefined, now: InstanceSnapshot): InstanceSnapshot {
  if (earlier === undefined) return now;
  const { sent, lending, attentionWorkers, links } = now;
  const own = sumOf([earlier, now]);
  return {
    ...now,
    ...pick(own, ['promptTokens', 'cachedTokens', 'computedPromptTokens', 'generatedTokens', 'preemptions', 'steps']),
    ...pick(own, ['stepMsTotal', 'evictedBlocks', 'usedPageSeconds']),
    ...(own.blockAges && { blockAges: own.blockAges }),
    ...(sent && { sent: added(earlier.sent, sent) }),
    ...(now.store && { store: added(earlier.store, now.store) }),
    ...(own.prefixCopies && { prefixCopies: own.prefixCopies }),
    ...(now.tiers && own.tiers && { tiers: { ...own.tiers, host: now.tiers.host, ssd: now.tiers.ssd } }),
    ...(now.sparse &&
      own.sparse && { sparse: { ...now.sparse, ...pick(own.sparse, ['selections', 'promptTokens', 'keptTokens']) } }),
    ...(lending && { lending: lendingWith(earlier.lending, lending) }),
    ...(attentionWorkers && {
      attentionWorkers: attentionWorkers.map((worker, i) => workerWith(earlier.attentionWorkers?.[i], worker)),
    }),
    ...(links && {
      links: links.map((link) => {
        const before = earlier.links?.find(({ to }) => to === link.to);
        return before === undefined ? link : { ...link, bytes: before.bytes + link.bytes };
      }),
    }),
  };
}

function lendingWith(earlier: LendingSnapshot | undefined, now: LendingSnapshot): LendingSnapshot {
  if (earlier === undefined) return now;
  const counted = ['copiedBytes', 'overlappedBytes', 'movedBlocks', 'vacatedBlocks', 'settledBlocks'] as const;
  const total = added(earlier, now);
  return {
    ...now,
    ...pick(total, counted),
    ...(total.settlements !== undefined && { settlements: total.settlements }),
    ...pick(total, ['lostBlocks', 'stalls', 'stallUs']),
    servedAttention: added(earlier.servedAttention, now.servedAttention),
    remoteAttention: added(earlier.remoteAttention, now.remoteAttention),
  };
}

function workerWith(
  earlier: AttentionWorkerSnapshot | undefined,
  now: AttentionWorkerSnapshot,
): AttentionWorkerSnapshot {
  const { ready, sequences, heldTokens, ...counted } = now;
  return { ...now, ...added<Partial<AttentionWorkerSnapshot>>(earlier, counted) };
}

/** The sums of all numeric fields; other fields are those of `now`. */
function added<T extends object>(earlier: T | undefined, now: T): T {
  if (earlier === undefined) return now;
  const before = new Map<string, unknown>(Object.entries(earlier));
  const sums = Object.entries(now).map(([name, value]) => {
    const first = before.get(name);
    return [name, typeof value === 'number' && typeof first === 'number' ? first + value : value] as const;
  });
  return Object.fromEntries(sums) as T;
}

function pick<T, K extends keyof T>(from: T, names: readonly K[]): Pick<T, K> {
  return Object.fromEntries(names.map((name) => [name, from[name]])) as Pick<T, K>;
}

function workerAfterLoss({ sequences, ...counted }: AttentionWorkerSnapshot): AttentionWorkerSnapshot {
  return { ...counted, ready: false, ...(sequences !== undefined && { sequences: 0, heldTokens: 0 }) };
}

/** Reason why the role of a store does not change. */
export const storeRoleIsFixed = 'a store has no weights and cannot have another role';

/** True if the roles include a mixed instance, or a prefill and a decode instance. */
export function canServe(roles: readonly InstanceRole[]): boolean {
  return roles.includes('mixed') || (roles.includes('prefill') && roles.includes('decode'));
}

/** Counts by role, such as `2 prefill, 1 decode`. */
export function countsOf(roles: readonly InstanceRole[]): string {
  const counts = new Map<InstanceRole, number>();
  for (const role of roles) counts.set(role, (counts.get(role) ?? 0) + 1);
  return [...counts].map(([role, count]) => `${count} ${role}`).join(', ');
}

/** Sum over all instances, lost ones included; ready if one is. */
export function sumOf(snapshots: readonly InstanceSnapshot[]): InstanceSnapshot {
  return snapshots.reduce(
    (a, b) => ({
      ready: a.ready || b.ready,
      waiting: a.waiting + b.waiting,
      running: a.running + b.running,
      pages: {
        total: a.pages.total + b.pages.total,
        used: a.pages.used + b.pages.used,
        cached: a.pages.cached + b.pages.cached,
        free: a.pages.free + b.pages.free,
      },
      promptTokens: a.promptTokens + b.promptTokens,
      cachedTokens: a.cachedTokens + b.cachedTokens,
      computedPromptTokens: a.computedPromptTokens + b.computedPromptTokens,
      generatedTokens: a.generatedTokens + b.generatedTokens,
      preemptions: a.preemptions + b.preemptions,
      steps: a.steps + b.steps,
      stepMsTotal: a.stepMsTotal + b.stepMsTotal,
      evictedBlocks: a.evictedBlocks + b.evictedBlocks,
      ...agesOf(a.blockAges, b.blockAges),
      ...blocksOf(a.blocks, b.blocks),
      ...copiesOf(a.prefixCopies, b.prefixCopies),
      usedPageSeconds: a.usedPageSeconds + b.usedPageSeconds,
      tiers: tiersOf(a.tiers, b.tiers),
      sparse: sparseOf(a.sparse, b.sparse),
    }),
    emptySnapshot,
  );
}

function copiesOf(a: PrefixCopies | undefined, b: PrefixCopies | undefined): Pick<InstanceSnapshot, 'prefixCopies'> {
  if (a === undefined && b === undefined) return {};
  const { fetchedBlocks = 0, proactiveBlocks = 0 } = a ?? {};
  const prefixCopies = {
    fetchedBlocks: fetchedBlocks + (b?.fetchedBlocks ?? 0),
    proactiveBlocks: proactiveBlocks + (b?.proactiveBlocks ?? 0),
  };
  return { prefixCopies };
}

function agesOf(a: BlockAges | undefined, b: BlockAges | undefined): Pick<InstanceSnapshot, 'blockAges'> {
  if (a !== undefined && b !== undefined) return { blockAges: sumOfAges(a, b) };
  const blockAges = a ?? b;
  return blockAges === undefined ? {} : { blockAges };
}

/** Blocks of all instances, which have blocks of one size. */
function blocksOf(a: InstanceSnapshot['blocks'], b: InstanceSnapshot['blocks']): Pick<InstanceSnapshot, 'blocks'> {
  const tokens = a?.tokens ?? b?.tokens;
  return tokens === undefined ? {} : { blocks: { total: (a?.total ?? 0) + (b?.total ?? 0), tokens } };
}

function sparseOf(a: SparseSnapshot | undefined, b: SparseSnapshot | undefined): SparseSnapshot | undefined {
  if (a === undefined || b === undefined) return a ?? b;
  return {
    sequences: a.sequences + b.sequences,
    slotTokens: a.slotTokens + b.slotTokens,
    slotPages: a.slotPages + b.slotPages,
    selections: a.selections + b.selections,
    promptTokens: a.promptTokens + b.promptTokens,
    keptTokens: a.keptTokens + b.keptTokens,
  };
}

function tiersOf(a: TiersSnapshot | undefined, b: TiersSnapshot | undefined): TiersSnapshot | undefined {
  if (a === undefined || b === undefined) return a ?? b;
  const tier = (one: TierSnapshot, other: TierSnapshot): TierSnapshot => ({
    blocks: one.blocks + other.blocks,
    capacity: one.capacity + other.capacity,
  });
  return {
    host: tier(a.host, b.host),
    ssd: tier(a.ssd, b.ssd),
    reads: {
      host: a.reads.host + b.reads.host,
      ssd: a.reads.ssd + b.reads.ssd,
      instance: a.reads.instance + b.reads.instance,
    },
    lostBlocks: a.lostBlocks + b.lostBlocks,
    moved: {
      copiedBytes: (a.moved?.copiedBytes ?? 0) + (b.moved?.copiedBytes ?? 0),
      storedEarlyBytes: (a.moved?.storedEarlyBytes ?? 0) + (b.moved?.storedEarlyBytes ?? 0),
      ssdReadBytes: (a.moved?.ssdReadBytes ?? 0) + (b.moved?.ssdReadBytes ?? 0),
      ssdReadSeconds: (a.moved?.ssdReadSeconds ?? 0) + (b.moved?.ssdReadSeconds ?? 0),
      ssdWrittenBytes: (a.moved?.ssdWrittenBytes ?? 0) + (b.moved?.ssdWrittenBytes ?? 0),
      badBlocks: (a.moved?.badBlocks ?? 0) + (b.moved?.badBlocks ?? 0),
    },
  };
}
