// A cluster of any size with made-up figures and requests, for the dashboard.
import type {
  ClusterPort,
  GenerationEvent,
  GenerationRequest,
  InstanceSnapshot,
  SharedPrefix,
} from '../../../src/core/protocol/ports.ts';
import type { PlacementTrace, RequestTrace } from '../../../src/core/protocol/request-trace.ts';
import { ScriptedPort } from '../scripted-port.ts';
import { answering, noCluster } from '../world.ts';

/** The time of all figures on the clock of traces. */
const nowUs = 60_000_000;
const originUs = performance.timeOrigin * 1000;

export function snapshotOf(i: number, instances: number): InstanceSnapshot {
  const total = 4000;
  const used = (i * 397) % 2600;
  const cached = (i * 211) % 1200;
  return {
    ready: i % 97 !== 13,
    ...{ waiting: i % 5, running: i % 17 },
    pages: { total, used, cached, free: total - used - cached },
    ...{ promptTokens: 90_000 + i, cachedTokens: 40_000, computedPromptTokens: 50_000 + i, generatedTokens: 7_000 + i },
    ...{ preemptions: i % 3, steps: 9_000, stepMsTotal: 60_000, evictedBlocks: 12, usedPageSeconds: 0 },
    blocks: { total: total / 4, tokens: 16 },
    memory: {
      ...{ pinned: Math.min(used, 80), lent: i % 4 === 0 ? 120 : 0 },
      owners: [3, 2, 1].map((share) => [`chatcmpl-${i}-${share}`, Math.floor((used * share) / 8)] as const),
      pagesByAge: [5, 4, 3, 2, 1].map((share) => Math.floor((cached * share) / 15)),
    },
    tiers: {
      ...{ host: { blocks: (i * 31) % 500, capacity: 500 }, ssd: { blocks: (i * 17) % 2000, capacity: 2000 } },
      ...{ reads: { host: 3, ssd: 2, instance: 1 }, lostBlocks: 0 },
    },
    links: [1, 5].map((step) => ({ to: (i + step) % instances, bytes: 1e6 * (1 + (i % 9)), backlogBytes: 0 })),
    lending: {
      ...{
        lenderNumber: i,
        lentBlocks: 0,
        borrowedBlocks: i % 6 === 0 ? 40 : 0,
        remoteBlocks: 0,
        remoteCachedBlocks: 0,
      },
      ...{ copiedBytes: 0, overlappedBytes: 0, movedBlocks: 0, hostBlocks: 0, ownHostBlocks: 0, vacatedBlocks: 2 },
      ...{ settledBlocks: i, lostBlocks: 0, stalls: 0, stallUs: 0 },
      links: i % 6 === 0 ? [lendingLink((i + 3) % instances, 40)] : [],
      servedAttention: { queries: 0, rows: 0, refused: 0, seconds: 0, restSeconds: 0, bytesIn: 0, bytesOut: 0 },
      remoteAttention: { queries: 0, bytesOut: 0, bytesIn: 0, waitSeconds: 0 },
    },
  };
}

function lendingLink(peer: number, borrowedBlocks: number) {
  const traffic = { queries: 0, refusedQueries: 0, queryBytes: 0, partialBytes: 0 };
  return { peer, borrowedBlocks, movedBytes: 0, refusals: 0, ...traffic };
}

function placementOf(i: number, instances: number): PlacementTrace {
  const [instance, other] = [i % instances, (i + 1) % instances];
  const candidate = (at: number, queueUs: number) => ({
    ...{ instance: at, requests: 2, matchedTokens: 320, queueUs, prefillUs: 30_000 },
  });
  return {
    atUs: nowUs - 1_000_000,
    candidates: instances === 1 ? [candidate(0, 2_000)] : [candidate(instance, 2_000), candidate(other, 9_000)],
    ...{ instance, decodeAt: instances > 2 ? (i + 2) % instances : undefined, group: undefined },
    ...{
      fetchedFrom: i % 3 === 0 && instances > 1 ? other : undefined,
      fetchedTokens: i % 3 === 0 ? 160 : 0,
      inline: false,
    },
    ...{ waitUs: 2_000, prefillUs: 30_000 },
    predicted: { ttftUs: 36_000 + 500 * (i % 7), tbtUs: 9_000, outputTokens: 64, decodeLoad: 0.4 },
  };
}

/** Request i of a mix of finished, running, refused and failed ones. */
export function traceOf(i: number, instances: number): RequestTrace {
  const submittedUs = nowUs - 400_000 * (i + 1);
  const at = (ms: number) => submittedUs + 1000 * ms;
  const step = (from: number, rows: number, start: number) => ({
    ...{ kind: 'step' as const, instance: i % instances, from, rows, aborted: false },
    ...{ startedUs: originUs + at(start), endedUs: originUs + at(start + 11) },
  });
  const refused = i % 11 === 5;
  const running = i < 2;
  const [promptTokens, cachedTokens] = [960, 480];
  const shown = refused ? {} : { startedUs: at(4), prefilledUs: at(34), firstTokenUs: at(41 + (i % 5)) };
  return {
    id: `chatcmpl-${String(i).padStart(4, '0')}-0`,
    state: refused ? 'refused' : running ? 'decode' : 'finished',
    ...{ promptTokens, cachedTokens, maxTokens: 128, outputTokens: refused ? 0 : 64, batch: false, priority: 0 },
    ...{ blocks: refused ? undefined : { hits: 30, neverSeen: 20, evicted: 6, elsewhere: 3, partial: 1 } },
    ...{ sloClass: ['chat', 'agent', undefined][i % 3], trace: undefined, tenant: undefined },
    steps: refused
      ? []
      : [
          { ...step(0, 160, 0.5), kind: 'fetch' as const, endedUs: originUs + at(4) },
          ...[0, 1].map((k) => step(480 + 240 * k, 240, 5 + 13 * k)),
        ],
    stepsOmitted: 0,
    placements: refused ? [] : [placementOf(i, instances)],
    ...{ submittedUs, startedUs: undefined, prefilledUs: undefined, firstTokenUs: undefined, ...shown },
    ...{ lastTokenUs: refused ? undefined : at(240 + (i % 9)), endedUs: running ? undefined : at(refused ? 1 : 250) },
    end: running
      ? undefined
      : refused
        ? {
            ...{ kind: 'failed', code: 'KV_OVERLOADED', message: 'Cannot admit request: predicted TTFT of 3 s' },
            cause: { reason: 'ttft', at: 'prefill', predictedUs: 3e6, mostUs: 1e6 },
          }
        : { kind: 'finished', reason: 'length' },
  };
}

/** A trunk, and branches behind it. */
function prefixes(): readonly SharedPrefix[] {
  const run = (
    id: number,
    parent: number | undefined,
    depth: number,
    blocks: number,
    prompts: number,
  ): SharedPrefix => ({
    ...{ id, parent, depth, blocks, prompts, hash: (id * 2_654_435_761).toString(16).slice(0, 8) },
    ...{ hitBlocks: blocks * (prompts - 1), lastUsedUs: nowUs - 1e6 * id, holders: id % 3 },
  });
  return [
    run(1, undefined, 0, 30, 200),
    run(2, 1, 30, 12, 120),
    run(3, 1, 30, 50, 60),
    run(4, 2, 42, 4, 20),
    run(5, undefined, 0, 8, 9),
  ];
}

export interface SyntheticCluster {
  readonly cluster: ClusterPort;
  readonly snapshots: readonly InstanceSnapshot[];
  /** Adds the trace of a request that a client has sent. */
  add(id: string): void;
}

export function syntheticCluster(instances: number, requests: number): SyntheticCluster {
  const traces = Array.from({ length: requests }, (_, i) => traceOf(i, instances));
  const snapshots = Array.from({ length: instances }, (_, i) => snapshotOf(i, instances));
  const cluster: ClusterPort = {
    ...noCluster,
    roles: () => snapshots.map((_, i) => (instances < 3 ? 'mixed' : i % 2 === 0 ? 'prefill' : 'decode')),
    requestTrace: (id) => traces.find((trace) => trace.id === id),
    recentTraces: (sinceUs, most) => ({ nowUs, traces: sinceUs > nowUs ? [] : traces.slice(0, most) }),
    sharedPrefixes: prefixes,
    onEnded: (listener) => {
      for (const trace of traces) if (trace.endedUs !== undefined) listener(trace);
    },
  };
  return { cluster, snapshots, add: (id) => traces.unshift({ ...traceOf(2, instances), id }) };
}

/** A port that shows the instances of the cluster, and answers with this text. */
export class SyntheticPort extends ScriptedPort {
  readonly #cluster: SyntheticCluster;

  constructor(cluster: SyntheticCluster, text: string) {
    super(answering(text));
    this.#cluster = cluster;
  }

  override submit(request: GenerationRequest, sink: (event: GenerationEvent) => void): void {
    super.submit(request, sink);
    this.#cluster.add(request.id);
  }

  override instances(): readonly InstanceSnapshot[] {
    return this.#cluster.snapshots;
  }
}
