// Chaos runs of lending: one seed makes one world, its loads and its faults; any broken rule throws.

import { defaultLendingTimes } from '../../core/lending/times.ts';
import type { LendingMessageKind, MessageFate } from '../../core/protocol/lending-messages.ts';
import { Prng } from '../../util/prng.ts';
import { faultNames, type LendingFaults, roughFaults } from './faults.ts';
import { type LendingCounts, LendingWorld } from './world.ts';

export type { LendingCounts };

/** Long enough for several waves of load; then for all who wait for their turn; then for leases, recalls and settlements to come to an end. */
const chaosUs = 10_000_000;
const turnsUs = 15_000_000;
const restUs = 8_000_000;

/** Handlers of messages that met a fate: each of them is to run in a soak. */
export const handlers: Readonly<Record<MessageFate, readonly LendingMessageKind[]>> = {
  lost: ['heartbeat', 'query', 'borrow', 'renew', 'return', 'recall', 'prepare', 'commit', 'settled'],
  doubled: [
    ...['heartbeat', 'query', 'candidates', 'borrow', 'lend', 'refuse', 'renew', 'renewed', 'return', 'returned'],
    ...['recall', 'prepare', 'prepared', 'commit', 'settled', 'abort'],
  ] as LendingMessageKind[],
  late: [
    ...['heartbeat', 'query', 'candidates', 'borrow', 'lend', 'refuse', 'renew', 'renewed', 'return', 'returned'],
    ...['recall', 'prepare', 'prepared', 'declined', 'commit', 'settled', 'abort', 'outcome'],
  ] as LendingMessageKind[],
  orphan: [
    ...['heartbeat', 'query', 'candidates', 'borrow', 'lend', 'refuse', 'renew', 'renewed', 'return', 'returned'],
    ...['recall', 'prepare', 'prepared', 'declined', 'commit', 'settled', 'abort', 'outcome', 'restarted'],
  ] as LendingMessageKind[],
};

export function createLendingWorld(seed: number, faults: LendingFaults | undefined): LendingWorld {
  const prng = new Prng(seed, 3);
  return new LendingWorld({
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
    growUs: 40_000,
    loadPeriodUs: prng.integer(2_000_000, 4_000_000),
    settleBlocksMin: 1,
  });
}

/** Runs one seed to its end. Throws on the first broken rule. */
export function runLendingChaos(seed: number, faults: LendingFaults = roughFaults): LendingCounts {
  const world = createLendingWorld(seed, faults);
  injectFaults(world, faults, new Prng(seed, 4));
  world.run(chaosUs);
  world.network.heal();
  world.patient = true;
  if (world.gathers) killHolder(world);
  if (world.waiting.size > 0) awaitTurns(world);
  world.hold();
  world.run(restUs);
  checkLedger(world);
  // What is given back by that is said until it is heard.
  world.network.harm(faults);
  world.endAll();
  world.run(lookUs);
  world.network.heal();
  world.run(restUs);
  world.checkEmpty();
  world.checkAtRest();
  return world.counts;
}

/** Whoever is short goes on asking, and what it is lent may be recalled for others: the ledger hears of that with the next heartbeats. */
function checkLedger(world: LendingWorld, looks = 10): void {
  try {
    world.checkAtRest();
  } catch (error) {
    if (looks === 0) throw error;
    world.run(defaultLendingTimes.heartbeatUs / 2);
    checkLedger(world, looks - 1);
  }
}

/** Fewer than three may not have what one of them waits for. */
const aliveMin = 3;
/** How often it is looked whether several wait for the turn. */
const looksMax = 30;
const lookUs = 200_000;

/** The last thing to go wrong: one that has the turn dies, while others wait for it and all are there. */
function killHolder(world: LendingWorld): void {
  for (const node of world.nodes) if (node.incarnation === undefined) world.start(node);
  for (let waited = 0; waited < looksMax; waited++) {
    const { holder } = world.gmanager.reservations;
    if (aliveIn(world) <= aliveMin) return;
    if (holder !== undefined && world.waiting.size > 1) {
      world.crash(world.nodes[holder]);
      return;
    }
    world.run(lookUs);
  }
}

/** Load goes on: who waited is let in. */
function awaitTurns(world: LendingWorld): void {
  const { waiting } = world;
  world.run(turnsUs);
  if (aliveIn(world) < aliveMin) return;
  for (const [incarnation, number] of world.waiting)
    if (waiting.get(incarnation) === number)
      throw new Error(
        `Lending broken: life ${incarnation.number} gathers memory for ${turnsUs / 1e6} s, and nothing is wrong`,
      );
}

function aliveIn({ nodes }: LendingWorld): number {
  return nodes.filter(({ incarnation }) => incarnation !== undefined).length;
}

function injectFaults(world: LendingWorld, faults: LendingFaults, prng: Prng): void {
  const { agenda, nodes } = world;
  const every = (meanUs: number, inject: () => void) => {
    agenda.after(prng.exponentialUs(meanUs), () => {
      if (agenda.nowUs >= chaosUs) return;
      inject();
      every(meanUs, inject);
    });
  };
  const anyNode = () => nodes[prng.integer(0, nodes.length - 1)];
  every(faults.partitionUsMean, () => {
    const cut = world.parties.filter(() => prng.chance(0.3));
    world.network.cut(cut);
    agenda.after(prng.exponentialUs(faults.outageUsMean), () => world.network.join(cut));
  });
  every(faults.crashUsMean, () => {
    const node = anyNode();
    if (node.incarnation === undefined) return;
    world.count('crash');
    world.crash(node);
    if (prng.chance(faults.deathRatio)) return;
    agenda.after(prng.exponentialUs(faults.outageUsMean), () => {
      world.count('restart');
      world.start(node);
    });
  });
  every(faults.slowUsMean, () => {
    world.count('slow node');
    world.slow(anyNode(), prng.exponentialUs(faults.outageUsMean));
  });
  every(faults.gmanagerRestartUsMean, () => {
    const together = prng.chance(0.5) ? prng.exponentialUs(faults.outageUsMean) + 1 : 0;
    world.count(together > 0 ? 'two gManagers at once' : 'gManager restart');
    world.startGManager(together);
  });
}

/** Sums of several runs. */
export function addCounts(sum: LendingCounts, counts: LendingCounts): void {
  for (const [fault, count] of counts.faults) sum.faults.set(fault, (sum.faults.get(fault) ?? 0) + count);
  for (const [key, count] of counts.met) sum.met.set(key, (sum.met.get(key) ?? 0) + count);
  sum.placedBlocks += counts.placedBlocks;
  sum.lostBlocks += counts.lostBlocks;
  sum.vacatedBlocks += counts.vacatedBlocks;
  sum.loans += counts.loans;
  sum.gatherings += counts.gatherings;
  sum.holds += counts.holds;
  sum.firmLoans += counts.firmLoans;
  sum.events += counts.events;
}

/** Faults that were never injected and handlers that never ran: a soak that leaves any has shown nothing about it. */
export function neverHappened({ faults, met, ...sums }: LendingCounts): readonly string[] {
  const expected = (Object.keys(handlers) as MessageFate[]).flatMap((fate) =>
    handlers[fate].map((message) => `${fate} ${message}`),
  );
  const counted = (Object.keys(sums) as (keyof typeof sums)[]).filter((name) => sums[name] === 0);
  return [...counted, ...faultNames.filter((fault) => !faults.has(fault)), ...expected.filter((key) => !met.has(key))];
}
