// Chaos runs of attention workers: a seed makes instances that keep their pages at attention workers, their requests and faults.
import { admissionKinds } from '../../core/router/admission/admission-policy.ts';
import { Prng } from '../../util/prng.ts';
import type { InstanceSpec, SimulationConfig } from '../engine/simulation-config.ts';
import type { ChaosCounts, ChaosKind } from './chaos-counts.ts';
import { fault } from './fault-plan.ts';
import { runWorld } from './request-chaos.ts';
import { blockTokens, cost, planOf, type RequestWorld, traceOf } from './request-worlds.ts';

type WorkerTotal = 'requests' | 'completed' | 'events' | 'failedSteps' | 'recomputed';

/** Random stream of these worlds. */
const stream = 14;

/** Placements that move no prefix between instances: their pages lie at attention workers. */
const placements = ['local-cache-only', 'least-loaded', 'round-robin', 'random'] as const;

/** Small instances with attention workers, of which some are lost, also while the instance fails. */
export function workerWorld(seed: number): RequestWorld {
  const prng = new Prng(seed, stream);
  const { faults, ...plan } = planOf(seed, prng);
  const losses = fault('worker', { everyUs: prng.integer(100_000, 600_000), forUs: prng.integer(1_000, 300_000) });
  const admission = prng.chance(0.3) ? admissionKinds[prng.integer(1, 3)] : 'none';
  const config: SimulationConfig = {
    instances: instancesOf(prng),
    linkBytesPerSecond: undefined,
    ...{ blockTokens, queueMax: 1_000, checking: true },
    placement: {
      ...{ kind: placements[prng.integer(0, placements.length - 1)], seed: [seed, 1], balancingThreshold: 1 },
    },
    admission: {
      ...{ kind: admission, decodeUs: 300_000 },
      slo: admission === 'none' ? undefined : { ttft: { us: 400_000 }, tbt: { us: 30_000 } },
    },
    faults: { ...plan, faults: [...faults, losses] },
  };
  const [priorities, jobs] = [prng.chance(0.5), prng.chance(0.3)];
  const trace = traceOf(prng).map((request) => {
    if (jobs && prng.chance(0.2)) return { ...request, batch: true };
    return priorities && prng.chance(0.3) ? { ...request, priority: 1 } : request;
  });
  return { config, trace };
}

function instancesOf(prng: Prng): readonly InstanceSpec[] {
  const nic = { bytesPerSecond: 1e9, us: prng.integer(10, 2_000) };
  // In half of the worlds memory is short: sequences are preempted for it.
  const each = prng.chance(0.5) ? prng.integer(14, 18) : prng.integer(20, 60);
  const workers = prng.integer(1, 4);
  const partition = prng.chance(0.5) ? 'requests' : 'heads';
  const blocks = partition === 'requests' ? each * workers : each;
  const machine: InstanceSpec['machine'] = {
    ...({ cost, blockTokens, blocks, eviction: 'lru', coalesce: prng.chance(0.6) } as const),
    limits: {
      ...{ tokensMax: prng.integer(24, 128), logitRowsMax: 33, sequencesMax: 8 },
      ...{ stepUsDecoding: 20_000, stepUsPrefill: 100_000 },
    },
    attentionWorkers: { workers, partition },
  };
  return Array.from({ length: prng.integer(1, 3) }, () => ({ role: 'mixed', nic, machine }));
}

/** Runs the world of a seed to its end. @throws Error on the first broken rule */
export function runWorkerChaos(seed: number): ChaosCounts<WorkerTotal> {
  const { cluster, outcome } = runWorld(workerWorld(seed), seed);
  return {
    faults: new Map(cluster.faults?.injected),
    anomalies: cluster.messageCounts.counts,
    totals: {
      requests: outcome.requests,
      completed: outcome.completedRequests,
      events: cluster.checks?.events ?? 0,
      failedSteps: cluster.attentionWorkers?.failedSteps ?? 0,
      recomputed: cluster.attentionWorkers?.recomputed ?? 0,
    },
  };
}

export const workerChaos: ChaosKind<WorkerTotal> = {
  name: 'attention workers',
  run: runWorkerChaos,
  faults: ['attention worker loss', 'attention worker replacement', 'crash', 'restart', 'conductor restart'],
  handlers: ['attentionWorkerLost', 'attentionWorkerReady'].flatMap((event) =>
    ['duplicate', 'orphan'].map((anomaly) => `${anomaly} ${event}`),
  ),
  totals: ['completed', 'failedSteps', 'recomputed'],
};
