// GET /api/cluster: the current state of all instances, for `kvasir top` and dashboards.
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type {
  AttentionWorkerSnapshot,
  ClusterView,
  InstanceSnapshot,
  InstancesPort,
  StoreSnapshot,
} from '../../core/protocol/ports.ts';
import type { ModelLoads, ServedModels } from '../models/served-models.ts';

export function describeCluster(
  models: Pick<ServedModels, 'figures'>,
  port: InstancesPort,
  cluster: ClusterView,
): object {
  const all = models.figures();
  const roles = cluster.roles();
  const snapshots = port.instances();
  const places = new Map(snapshots.map(({ lending }, instance) => [lending?.lenderNumber, instance]));
  const instances = snapshots
    .map((snapshot, instance) => ({
      departed: snapshot.departed,
      ...{ instance, name: snapshot.name ?? null, role: roles[instance] },
      ...describeInstance(snapshot, (place) => places.get(place)),
    }))
    .filter(({ departed }) => departed !== true);
  const loads = all.flatMap(({ model, loads: own }) => (own === undefined ? [] : [describeLoads(model, own)]));
  return {
    object: 'kvasir.cluster',
    model: all.map(({ model }) => model).join(', '),
    at_ms: Date.now(),
    ready: port.snapshot().ready,
    instances,
    ...(loads.length > 0 && { models: loads }),
  };
}

function describeLoads(id: string, { state, bytes, loads, unloads, failures, loadSeconds }: ModelLoads): object {
  return { id, state, memory_bytes: bytes, loads, unloads, failures, load_seconds: loadSeconds };
}

/** Counts instances, and those of them that serve. Stores compute nothing and are counted separately. */
export function countInstances(port: InstancesPort, cluster: ClusterView): object {
  const roles = cluster.roles();
  const counted = (isOne: (role: InstanceRole | undefined) => boolean) => {
    const those = port.instances().filter(({ departed }, instance) => departed !== true && isOne(roles[instance]));
    return { total: those.length, ready: those.filter(({ ready }) => ready).length };
  };
  const stores = counted((role) => role === 'store');
  return { instances: counted((role) => role !== 'store'), ...(stores.total > 0 && { stores }) };
}

/** Debts are blocks borrowed, by creditor; `guests` is remote attention served, by debtor. */
function describeLending(
  lending: NonNullable<InstanceSnapshot['lending']>,
  instanceAt: (place: number) => number | undefined,
): object {
  const { lentBlocks, borrowedBlocks, remoteBlocks, movedBlocks, lostBlocks, stalls, stallUs, links } = lending;
  return {
    lent_blocks: lentBlocks,
    borrowed_blocks: borrowedBlocks,
    remote_blocks: remoteBlocks,
    moved_blocks: movedBlocks,
    lost_blocks: lostBlocks,
    stalls,
    stall_seconds: stallUs / 1e6,
    debts: links.flatMap(({ peer, borrowedBlocks: blocks, movedBytes, refusals, transport = null }) => {
      const to = instanceAt(peer);
      if (to === undefined || blocks + movedBytes + refusals === 0) return [];
      return [{ to, transport, blocks, moved_bytes: movedBytes, loan_refusals: refusals }];
    }),
    guests: links.flatMap(({ peer, queries, refusedQueries, queryBytes, partialBytes }) => {
      const of = instanceAt(peer);
      if (of === undefined || queries + refusedQueries === 0) return [];
      return [{ of, queries, refused_queries: refusedQueries, query_bytes: queryBytes, partial_bytes: partialBytes }];
    }),
  };
}

function describeAttentionWorker(worker: AttentionWorkerSnapshot): object {
  const { ready, losses, calls = 0, bytesOut = 0, bytesIn = 0, sequences, heldTokens } = worker;
  const { waitSeconds = 0, earlySeconds = 0, lateSeconds = 0, pulledPages, pulledBytes } = worker;
  return {
    ...{ ready, losses, calls },
    sequences: sequences ?? null,
    held_tokens: heldTokens ?? null,
    sent_bytes: bytesOut,
    received_bytes: bytesIn,
    wait_seconds: waitSeconds,
    early_seconds: earlySeconds,
    late_seconds: lateSeconds,
    pulled_pages: pulledPages ?? null,
    pulled_bytes: pulledBytes ?? null,
  };
}

function describeStore({ takenBlocks, takenBytes, sentBlocks, declinedOffers }: StoreSnapshot): object {
  return {
    taken_blocks: takenBlocks,
    taken_bytes: takenBytes ?? 0,
    sent_blocks: sentBlocks,
    declined_offers: declinedOffers,
  };
}

function describeInstance(snapshot: InstanceSnapshot, instanceAt: (place: number) => number | undefined): object {
  const {
    ready,
    waiting,
    running,
    pages,
    receivePages,
    sent,
    links = [],
    tiers,
    lending,
    store,
    attentionWorkers,
  } = snapshot;
  return {
    ready,
    requests: { waiting, running },
    pages,
    landing_pages: receivePages ?? null,
    prompt_tokens: snapshot.promptTokens,
    cached_tokens: snapshot.cachedTokens,
    computed_prompt_tokens: snapshot.computedPromptTokens,
    generated_tokens: snapshot.generatedTokens,
    preemptions: snapshot.preemptions,
    evicted_blocks: snapshot.evictedBlocks,
    steps: snapshot.steps,
    step_seconds: snapshot.stepMsTotal / 1000,
    sent_bytes: sent?.bytes ?? 0,
    links: links.map(({ to, bytes, backlogBytes, transport = null }) => ({
      ...{ to, transport, bytes },
      backlog_bytes: backlogBytes,
    })),
    lending: lending === undefined ? null : describeLending(lending, instanceAt),
    attention_workers: attentionWorkers?.map(describeAttentionWorker) ?? null,
    store: store === undefined ? null : describeStore(store),
    tiers: tiers === undefined ? null : { host: tiers.host, ssd: tiers.ssd, reads: tiers.reads },
  };
}
