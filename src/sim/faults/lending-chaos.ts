// Chaos runs of lending: a seed makes one world, its loads and its faults; any broken rule throws.

import { defaultLendingTimes } from '../../core/lending/times.ts';
import type { LendingMessageKind, MessageAnomaly } from '../../core/protocol/lending-messages.ts';
import { Prng } from '../../util/prng.ts';
import { type LendingTotal, LendingWorld, type LendingWorldConfig } from '../engine/lending/lending-world.ts';
import type { ChaosCounts, ChaosKind } from './chaos-counts.ts';
import { type Fault, fault } from './fault-plan.ts';

/** Durations of the phases: several waves of load; all waiting sequences receive their reservations; leases, recalls and settlements end. */
const chaosUs = 10_000_000;
const reservationsUs = 15_000_000;
const restUs = 8_000_000;

const outage = { forUs: 600_000 };
const crashUs = 2_500_000;
/** Share of failed instances that do not restart. */
const permanentRatio = 0.15;

export const lendingFaults: readonly Fault[] = [
  fault('loss', { ratio: 0.06 }),
  fault('duplication', { ratio: 0.1 }),
  fault('delay', { ratio: 0.12, byUs: 500_000 }),
  fault('partition', { everyUs: 4_000_000, ...outage }),
  fault('crash', { everyUs: crashUs / (1 - permanentRatio), ...outage }),
  fault('crash', { everyUs: crashUs / permanentRatio }),
  fault('slow', { everyUs: 3_000_000, ...outage }),
  fault('gmanager', { everyUs: 2_500_000 }),
];

const always: readonly LendingMessageKind[] = [
  ...(['heartbeat', 'query', 'candidates', 'borrow', 'lend', 'refuse', 'renew', 'renewed', 'return'] as const),
  ...(['returned', 'recall', 'prepare'] as const),
];

/** Handlers of message anomalies. Each must run in a soak. */
export const lendingHandlers: Readonly<Record<MessageAnomaly, readonly LendingMessageKind[]>> = {
  lost: ['heartbeat', 'query', 'borrow', 'renew', 'return', 'recall', 'prepare', 'commit', 'settled'],
  duplicate: [...always, 'prepared', 'commit', 'settled', 'abort'],
  late: [...always, 'prepared', 'declined', 'commit', 'settled', 'abort', 'outcome'],
  orphan: [...always, 'prepared', 'declined', 'commit', 'settled', 'abort', 'outcome', 'restarted'],
};

export function lendingWorld(seed: number, faults: readonly Fault[] = lendingFaults): LendingWorldConfig {
  const prng = new Prng(seed, 3);
  return {
    seed,
    instances: prng.integer(3, 5),
    deviceBlocks: prng.integer(40, 80),
    hostBlocks: prng.integer(0, 10),
    stagingBlocks: 16,
    longChance: prng.chance(0.4) ? 0.01 : 0,
    policy: {
      lentShareMax: 0.5,
      lowWaterBlocks: 6,
      highWaterBlocks: 24,
      recallBlocks: 2,
      lookAheadUs: 300_000,
      loanBlocksMin: 4,
      remoteAttentionPermilleMax: 200,
    },
    times: defaultLendingTimes,
    faults,
    gmanagerOverlapUs: outage.forUs,
    growUs: 40_000,
    loadPeriodUs: prng.integer(2_000_000, 4_000_000),
    settleBlocksMin: 1,
  };
}

/** Runs the world of a seed to its end. @throws Error on the first broken rule */
export function runLendingChaos(seed: number): ChaosCounts<LendingTotal> {
  const world = new LendingWorld(lendingWorld(seed));
  world.run(chaosUs);
  world.heal();
  world.keepsLongSequences = true;
  if (world.hasLongSequences) crashReservationHolder(world);
  if (world.waiting.size > 0) waitForReservations(world);
  world.stopLoad();
  world.run(restUs);
  checkLedger(world);
  // Returns that this causes are repeated until they are received.
  world.restartMessageFaults();
  world.endAll();
  world.run(pollUs);
  world.heal();
  world.run(restUs);
  world.checkEmpty();
  world.checkAtRest();
  return { faults: world.injected, anomalies: world.anomalies, totals: world.totals };
}

export const lendingChaos: ChaosKind<LendingTotal> = {
  name: 'lending',
  run: runLendingChaos,
  faults: [
    ...(['loss', 'duplication', 'delay', 'partition', 'crash', 'restart', 'slow node', 'gManager restart'] as const),
    'two gManagers at once',
  ],
  handlers: (Object.keys(lendingHandlers) as MessageAnomaly[]).flatMap((anomaly) =>
    lendingHandlers[anomaly].map((message) => `${anomaly} ${message}`),
  ),
  totals: [
    ...(['placedBlocks', 'lostBlocks', 'vacatedBlocks', 'loans'] as const),
    ...(['reservations', 'holds', 'committedLoans', 'events'] as const),
  ],
};

/** Instances short of memory continue to borrow, and loans are recalled for them: the ledger is current again after the next heartbeats. */
function checkLedger(world: LendingWorld, attempts = 10): void {
  try {
    world.checkAtRest();
  } catch (error) {
    if (attempts === 0) throw error;
    world.run(defaultLendingTimes.heartbeatUs / 2);
    checkLedger(world, attempts - 1);
  }
}

/** Fewer instances may not have the memory that a long sequence requires. */
const aliveMin = 3;
const pollsMax = 30;
const pollUs = 200_000;

/** The last fault: the holder of the reservation fails while others wait for it and all are up. */
function crashReservationHolder(world: LendingWorld): void {
  for (const { instance } of world.nodes) world.start(instance);
  for (let polls = 0; polls < pollsMax; polls++) {
    const { holder } = world.gmanager.borrowQueue;
    if (aliveIn(world) <= aliveMin) return;
    if (holder !== undefined && world.waiting.size > 1) {
      world.crash(holder);
      return;
    }
    world.run(pollUs);
  }
}

/** The load continues, and every sequence that waits now must be admitted. */
function waitForReservations(world: LendingWorld): void {
  const { waiting } = world;
  world.run(reservationsUs);
  if (aliveIn(world) < aliveMin) return;
  for (const [incarnation, number] of world.waiting)
    if (waiting.get(incarnation) === number)
      throw new Error(
        `Lending broken: incarnation ${incarnation.number} waits for its reservation for ${reservationsUs / 1e6} s without a fault`,
      );
}

function aliveIn({ nodes }: LendingWorld): number {
  return nodes.filter(({ incarnation }) => incarnation !== undefined).length;
}
