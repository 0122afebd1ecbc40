// Chaos runs of requests: a seed makes one cluster, its requests and its faults; any broken rule throws.
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Prng } from '../../util/prng.ts';
import { Simulation } from '../engine/simulation.ts';
import type { ChaosCounts, ChaosKind } from './chaos-counts.ts';
import { chaosUs, copyingWorld, type RequestWorld } from './request-worlds.ts';

/** After the faults, some request receives a token or ends at least this often. */
const stallUs = 5_000_000;
const stepUs = 100_000;
/** At the end, until instances have cancelled lost attempts and released orphans, leases of 2 s included, and have reported. */
const orphansUs = 3_000_000;
/** The same where prefixes are offered (to stores, or copies of hot ones): the patience for a lost fetch ends later. */
const offeredReleaseUs = 13_000_000;

export type RequestTotal =
  | ('requests' | 'completed' | 'events')
  /** Prompts computed by groups. */
  | 'groups'
  /** Blocks moved to creditors, lost there, and moved to host memory. */
  | ('movedBlocks' | 'lostBlocks' | 'hostBlocks')
  /** Blocks of hot prefixes copied ahead of prompts. */
  | 'proactiveBlocks';

/** Handlers of message anomalies. Each must run in a soak. */
export const requestHandlers: readonly string[] = [
  ...[
    ...[
      'cancel',
      'ended',
      'joinPipeline',
      'kvEvents',
      'prefilled',
      'report',
      'reserve',
      'snapshot',
      'submit',
      'tokens',
    ],
  ].map((message) => `lost ${message}`),
  ...['joinPipeline', 'joinedPipeline', 'release', 'reserve', 'started', 'submit', 'tokens'].map(
    (message) => `duplicate ${message}`,
  ),
  ...[
    ...['cancel', 'ended', 'kvEvents', 'released', 'prefilled', 'release', 'report', 'reserve', 'reserved', 'snapshot'],
    ...['started', 'submit', 'received', 'tokens', 'declinePipeline'],
  ].map((message) => `late ${message}`),
  ...[
    ...['cancel', 'ended', 'fetch', 'kvEvents', 'prefilled', 'release', 'report', 'reserve', 'reserved', 'snapshot'],
    ...['started', 'submit', 'received', 'tokens', 'cancelPrefix'],
  ].map((message) => `orphan ${message}`),
];

/** Runs the world of a seed to its end. @throws Error on the first broken rule */
export function runRequestChaos(seed: number): ChaosCounts<RequestTotal> {
  return countsOf(runWorld(copyingWorld(seed), seed));
}

/** Runs a world until its faults have ended and nothing is held. @throws Error on the first broken rule */
export function runWorld({ config, trace }: RequestWorld, seed: number): Simulation {
  const prng = new Prng(seed, 6);
  const simulation = new Simulation({ ...config, inspect: { after: () => {}, ended: checkTimeout } });
  const { cluster } = simulation;
  for (const request of trace) {
    simulation.arrive(request);
    if (prng.chance(0.08)) simulation.cancel(String(prng.integer(0, request.index)));
  }
  simulation.advance(chaosUs);
  cluster.faults?.heal();
  advanceToEnd(simulation, chaosUs + (config.faults?.times.timeoutUs ?? 0));
  const hasOffers =
    config.instances.some(({ role }) => role === 'store') || config.placement.copiesHotPrefixes === true;
  simulation.advance(simulation.nowUs + (hasOffers ? offeredReleaseUs : orphansUs));
  simulation.checks?.checkAtRest();
  simulation.lending?.checkAtRest();
  if (simulation.lending?.hasNoLoans === false)
    throw new Error('Lending broken: blocks are lent, and no request is left');
  return simulation;
}

/** Runs until all requests have ended, at most until the last one exceeds its timeout. @throws Error at a stall */
function advanceToEnd(simulation: Simulation, endUs: number): void {
  let progress = '';
  let progressUs = simulation.nowUs;
  for (let untilUs = simulation.nowUs; simulation.unfinished > 0 && untilUs < endUs; untilUs += stepUs) {
    simulation.advance(untilUs);
    const outputs = [...simulation.cluster.clients.requests].reduce((sum, [, request]) => sum + request.outputs, 0);
    const reached = `${simulation.unfinished} ${outputs}`;
    if (progress !== reached) [progress, progressUs] = [reached, untilUs];
    else if (untilUs - progressUs > stallUs)
      throw new Error(
        `Requests broken: none of ${simulation.unfinished} requests has progressed for ${stallUs / 1e6} s`,
      );
  }
}

/** Every request has enough time. */
function checkTimeout({ id }: LengthRequest, event: GenerationEvent): void {
  if (event.kind === 'failed' && event.message.includes('not ended in time'))
    throw new Error(`Requests broken: request ${id} has timed out: ${event.message}`);
}

function countsOf({ cluster, outcome, lending }: Simulation): ChaosCounts<RequestTotal> {
  const sum = (name: 'movedBlocks' | 'lostBlocks' | 'hostBlocks') =>
    (lending?.totals ?? []).reduce((all, totals) => all + totals[name], 0);
  return {
    faults: new Map(cluster.faults?.injected),
    anomalies: cluster.messageCounts.counts,
    totals: {
      requests: outcome.requests,
      completed: outcome.completedRequests,
      events: cluster.checks?.events ?? 0,
      groups: cluster.conductor.groupPrefills,
      movedBlocks: sum('movedBlocks'),
      lostBlocks: sum('lostBlocks'),
      hostBlocks: sum('hostBlocks'),
      proactiveBlocks: cluster.instances.reduce(
        (all, instance) => all + (instance.snapshot().prefixCopies?.proactiveBlocks ?? 0),
        0,
      ),
    },
  };
}

export const requestChaos: ChaosKind<RequestTotal> = {
  name: 'requests',
  run: runRequestChaos,
  faults: [
    ...(['loss', 'duplication', 'delay', 'partition', 'crash', 'restart', 'slow node'] as const),
    ...(['conductor restart', 'gManager restart'] as const),
  ],
  handlers: requestHandlers,
  totals: ['proactiveBlocks'],
};
