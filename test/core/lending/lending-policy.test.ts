// The lending policies: the ledger from heartbeats, its candidates, the cycles found, and when to borrow.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { linkDistance, linkFigures } from '../../../src/core/cost/links/link-distance.ts';
import { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { LendingMemory } from '../../../src/core/kvcache/lending-memory.ts';
import {
  blocksLendable,
  blocksToReturn,
  blocksWanted,
  blocksWithinBound,
  remoteAttentionPermille,
  slackPermille,
  unboundedPermille,
} from '../../../src/core/lending/lending-policy.ts';
import { DebtLedger } from '../../../src/core/lending/manager/debt-ledger.ts';
import { GManager } from '../../../src/core/lending/manager/gmanager.ts';
import { findCycle } from '../../../src/core/lending/settlement/debt-cycles.ts';
import { defaultLendingTimes as times } from '../../../src/core/lending/times.ts';
import type { LendingReport } from '../../../src/core/protocol/lending-report.ts';

/** Instances on a line: a round trip takes twice as long with each hop. */
const line = (instance: number, instances: number) =>
  Array.from({ length: instances }, (_, peer) => ({ peer, roundTripUs: 10_000 * 2 ** Math.abs(peer - instance) }));

function report(sequence: number, device: number, more: Partial<LendingReport> = {}): LendingReport {
  const lendable = { device, host: 0 };
  return {
    sequence,
    lendable,
    lendableLater: lendable,
    recallable: { device: 0, host: 0 },
    reservation: undefined,
    debts: [],
    loans: [],
    ...more,
  };
}

/** A ledger after one heartbeat of each instance. */
function ledgerOf(...lendable: number[]): DebtLedger {
  const ledger = new DebtLedger();
  for (const [instance, blocks] of lendable.entries())
    ledger.update(0, instance, 1, report(1, blocks, { links: line(instance, lendable.length) }));
  return ledger;
}

const named = (ledger: DebtLedger, debtor: number, blocks: number) =>
  ledger.candidates(debtor, 'device', blocks).map(({ instance }) => instance);

const demand = (blocksPerSecond: number) => ({ blocksPerSecond, aheadBlocks: 0 });

describe('creditor choice', () => {
  it('offers up to three, nearest first, then most free', () => {
    expect(named(ledgerOf(50, 0, 20, 90, 30, 40), 1, 10)).toEqual([0, 2, 3]);
    const equallyFar = new DebtLedger();
    for (const [instance, blocks] of [5, 9, 7, 8].entries()) equallyFar.update(0, instance, 1, report(1, blocks));
    expect(named(equallyFar, 0, 1)).toEqual([1, 3, 2]);
  });

  it('prefers creditors that can lend everything, and accepts less when none can', () => {
    expect(named(ledgerOf(0, 3, 20), 0, 10)).toEqual([2]);
    expect(named(ledgerOf(0, 3, 5), 0, 10)).toEqual([1, 2]);
  });

  it("spreads competing debtors until the creditor's next heartbeat", () => {
    const ledger = ledgerOf(0, 12, 0, 12);
    expect(named(ledger, 0, 10)[0]).toBe(1);
    expect(named(ledger, 2, 10)[0]).toBe(3);
    // A debtor's own earlier offer does not count against its new query.
    expect(named(ledger, 0, 10)[0]).toBe(1);
    ledger.update(1, 1, 1, report(2, 12));
    expect(named(ledger, 2, 10)[0]).toBe(1);
  });

  it('does not offer a refusing creditor before its next heartbeat with free blocks', () => {
    const ledger = ledgerOf(0, 12);
    ledger.update(0, 1, 1, report(4, 12));
    ledger.refuse({ instance: 1, incarnation: 1, memory: 'device', sequence: 4 });
    expect(named(ledger, 0, 10)).toEqual([]);
    ledger.update(1, 1, 1, report(5, 0));
    expect(named(ledger, 0, 10)).toEqual([]);
    // Sent before the refusal, received after it.
    expect(ledger.update(2, 1, 1, report(3, 12))).toBe('late');
    expect(named(ledger, 0, 10)).toEqual([]);
    ledger.update(3, 1, 1, report(6, 12));
    expect(named(ledger, 0, 10)).toEqual([1]);
    // A refusal older than the last heartbeat is out of date.
    ledger.refuse({ instance: 1, incarnation: 1, memory: 'device', sequence: 5 });
    expect(named(ledger, 0, 10)).toEqual([1]);
  });
});

describe('distance', () => {
  const near = { peer: 1, roundTripUs: 100, bytesPerSecond: 10e9 };
  const far = { peer: 1, roundTripUs: 2_000, bytesPerSecond: 1e9 };

  it('counts the longer time that either end reports, and not what a lying end claims', () => {
    expect(linkDistance([near, near])).toBeLessThan(linkDistance([far, far]));
    expect(linkDistance([far, near])).toBe(linkDistance([far, far]));
    expect(linkDistance([far, { peer: 0, roundTripUs: 0, bytesPerSecond: Number.MAX_SAFE_INTEGER }])).toBe(
      linkDistance([far, far]),
    );
  });

  it('takes a wild figure as the bound', () => {
    const wild = { peer: 1, roundTripUs: Number.MAX_SAFE_INTEGER, bytesPerSecond: 0 };
    expect(linkFigures(wild)).toEqual({ roundTripUs: 1_000_000, bytesPerSecond: 1e6 });
    expect(Number.isFinite(linkDistance([wild]))).toBe(true);
  });

  it('has a default for a link without a report, and for figures without a measurement', () => {
    expect(linkFigures(undefined)).toEqual({ roundTripUs: 200, bytesPerSecond: 1e9 });
    expect(linkFigures({ peer: 1, transport: 'shared', roundTripUs: 70 })).toEqual({
      roundTripUs: 70,
      bytesPerSecond: 4e9,
    });
    expect(linkDistance([undefined, undefined])).toBe(linkDistance([{ peer: 1, transport: 'tcp' }]));
    // One end alone has measured: its figures count.
    expect(linkDistance([near, undefined])).toBe(linkDistance([near, near]));
  });

  it('does not change with noise', () => {
    expect(linkDistance([{ ...near, roundTripUs: 112 }])).toBe(linkDistance([near]));
  });

  it('follows the last heartbeat alone', () => {
    const ledger = ledgerOf(0, 12, 12);
    expect(named(ledger, 0, 10)).toEqual([1, 2]);
    ledger.update(1, 0, 1, report(2, 0, { links: [{ peer: 1, roundTripUs: 900_000 }] }));
    expect(named(ledger, 0, 10)).toEqual([2, 1]);
    for (const instance of [0, 1, 2]) ledger.update(2, instance, 1, report(3, 12));
    expect(named(ledger, 0, 10)).toEqual([1, 2]);
  });
});

describe('the ledger', () => {
  it('distinguishes new, duplicate, late and orphaned heartbeats, and gaps', () => {
    const ledger = ledgerOf(7);
    expect(ledger.update(0, 0, 1, report(1, 9))).toBe('duplicate');
    expect(ledger.update(0, 0, 1, report(4, 9))).toBe('gap');
    expect(ledger.update(0, 0, 1, report(2, 8))).toBe('late');
    expect(ledger.update(0, 0, 2, report(1, 6))).toBe('new');
    expect(ledger.update(0, 0, 1, report(9, 5))).toBe('orphan');
    expect(ledger.lendable(0, 'device', 1)).toBe(6);
  });

  it('is rebuilt from one heartbeat of each instance, and forgets silent instances', () => {
    const reports = [
      report(8, 0, { debts: [{ creditor: 1, memory: 'device', blocks: 5 }] }),
      report(3, 2, { loans: [{ debtor: 0, memory: 'device', blocks: 4 }] }),
    ];
    const old = new DebtLedger();
    for (let sequence = 1; sequence < 4; sequence++) old.update(0, 0, 1, report(sequence, 9));
    const young = new DebtLedger();
    for (const ledger of [old, young]) for (const [i, one] of reports.entries()) ledger.update(10, i, 1, one);
    expect(young.edges('device')).toEqual(old.edges('device'));
    expect(young.edges('device')).toMatchObject([{ debtor: 0, creditor: 1, blocks: 4 }]);
    expect(young.forgetSilent(11)).toEqual([0, 1]);
    expect(young.edges('device')).toEqual([]);
  });
});

describe('settlement', () => {
  /** Prepares of the first round: pairs of instances that owe each other, with these free staging blocks. */
  function firstRound(pairs: readonly number[], staging: readonly (number | undefined)[]) {
    const gmanager = new GManager({ epoch: 1, times, blocksMin: 4, rangeBlocks: 4, uniform: () => 0 });
    const heartbeat = (from: number) => {
      const peer = from % 2 === 0 ? from + 1 : from - 1;
      const blocks = pairs[from >> 1] ?? 0;
      const debts = [{ creditor: peer, memory: 'device' as const, blocks }];
      const loans = [{ debtor: peer, memory: 'device' as const, blocks }];
      const message = {
        kind: 'heartbeat' as const,
        report: report(1, 0, { debts, loans, stagingBlocks: staging[from] }),
      };
      return { from, fromIncarnation: 1, to: 'gmanager' as const, toIncarnation: undefined, message };
    };
    gmanager.step(0, { kind: 'tick' });
    for (const from of staging.keys()) gmanager.step(0, { kind: 'message', envelope: heartbeat(from) });
    return gmanager.step(times.settleUs, { kind: 'tick' }).flatMap((effect) => {
      const { to, message } = effect.kind === 'send' ? effect.envelope : { to: undefined, message: undefined };
      return message?.kind === 'prepare' ? [[to, message.blocks]] : [];
    });
  }

  it('settles all cycles without a common member, each by the ranges of its least debt and its staging buffers', () => {
    // The second pair could settle 20 blocks, and one of it has staging for 11: two ranges.
    expect(firstRound([12, 20, 3], [40, 16, 11, 40, 40, 40])).toEqual([
      [0, 12],
      [1, 12],
      [2, 8],
      [3, 8],
    ]);
  });

  it('settles one range with a member that does not report its staging buffer, and nothing where it is full', () => {
    expect(firstRound([12, 12], [undefined, 16, 3, 16])).toEqual([
      [0, 4],
      [1, 4],
    ]);
  });

  it('prefers the cycle with the farthest creditors', () => {
    const owes = (debtor: number, creditor: number, distance: number) => ({ debtor, creditor, blocks: 4, distance });
    const edges = [owes(0, 1, 8), owes(0, 2, 11), owes(1, 0, 8), owes(2, 0, 11)];
    expect(findCycle(edges, 1, 0)?.members).toEqual([0, 2]);
  });

  const arbitraryEdges = fc.array(
    fc.record({
      ...{ debtor: fc.nat(6), creditor: fc.nat(6), blocks: fc.integer({ min: 1, max: 9 }) },
      distance: fc.nat(3),
    }),
    { maxLength: 14 },
  );

  it('finds a cycle exactly when there is one above the threshold, and its smallest debt', () => {
    fc.assert(
      fc.property(arbitraryEdges, fc.integer({ min: 1, max: 5 }), fc.nat(99), (drawn, blocksMin, hundredths) => {
        const pairs = new Map(drawn.map((edge) => [`${edge.debtor} ${edge.creditor}`, edge]));
        const edges = [...pairs.values()].filter(({ debtor, creditor }) => debtor !== creditor);
        const cycle = findCycle(edges, blocksMin, hundredths / 100);
        const strong = edges.filter(({ blocks }) => blocks >= blocksMin);
        expect(cycle !== undefined).toBe(hasCycle(strong));
        if (cycle === undefined) return;
        const { members } = cycle;
        expect(new Set(members).size).toBe(members.length);
        const debts = members.map((debtor, i) =>
          strong.find((edge) => edge.debtor === debtor && edge.creditor === members[(i + 1) % members.length]),
        );
        expect(cycle.blocks).toBe(Math.min(...debts.map((edge) => edge?.blocks ?? Number.NaN)));
      }),
      { numRuns: 400 },
    );
  });

  /** Oracle: repeatedly removes the instances without debts. */
  function hasCycle(edges: readonly { debtor: number; creditor: number }[]): boolean {
    let left = edges;
    for (;;) {
      const debtors = new Set(left.map(({ debtor }) => debtor));
      const next = left.filter(({ creditor }) => debtors.has(creditor));
      if (next.length === left.length) return left.length > 0;
      left = next;
    }
  }
});

describe('borrowing', () => {
  const policy = {
    lentShareMax: 0.5,
    lowWaterBlocks: 10,
    highWaterBlocks: 40,
    recallBlocks: 4,
    lookAheadUs: 500_000,
    loanBlocksMin: 4,
    remoteAttentionPermilleMax: 200,
  };

  it('lends at most its share, and nothing below the low-water mark', () => {
    expect(blocksLendable({ total: 100, available: 100, lent: 0 }, policy)).toBe(50);
    expect(blocksLendable({ total: 100, available: 60, lent: 45 }, policy)).toBe(5);
    expect(blocksLendable({ total: 100, available: 12, lent: 0 }, policy)).toBe(2);
    expect(blocksLendable({ total: 100, available: 3, lent: 50 }, policy)).toBe(0);
  });

  it('borrows before the pool is full, ahead of growth, and never what it would return at once', () => {
    expect(blocksWanted(30, demand(0), 0, policy)).toBe(0);
    expect(blocksWanted(30, demand(60), 0, policy)).toBe(10);
    expect(blocksWanted(9, demand(0), 0, policy)).toBe(4);
    fc.assert(
      fc.property(fc.nat(80), fc.nat(200), fc.nat(40), (available, growth, idle) => {
        const wanted = blocksWanted(available, demand(growth), idle, policy);
        if (wanted > 0) expect(blocksToReturn(available, demand(growth), idle + wanted, policy)).toBe(0);
      }),
    );
  });

  it('bounds remote attention by lent blocks', () => {
    expect(remoteAttentionPermille(5, 20, policy.remoteAttentionPermilleMax)).toBe(50);
    expect(blocksWithinBound(20, 50, 40)).toBe(20);
    expect(blocksWithinBound(20, 50, 100)).toBe(10);
    // Two equal debtors take 400 of 300 thousandths together.
    expect(blocksWithinBound(100, 150, 200)).toBe(75);
  });

  it('gives remote attention what the strictest TBT objective leaves', () => {
    const most = { ...policy, remoteAttentionPermilleMax: 300 };
    expect(slackPermille(50_000, Number.POSITIVE_INFINITY, most)).toBe(300);
    expect(slackPermille(50_000, 100_000, most)).toBe(300);
    expect(slackPermille(80_000, 100_000, most)).toBe(200);
    // Without any share, queries of debtors would exceed their time-out.
    expect(slackPermille(120_000, 100_000, most)).toBe(20);
  });

  it('states the load of a debtor without the bound: its time over the time without rests', () => {
    expect(unboundedPermille(80_000, 500_000, 1_000_000)).toBe(160);
    expect(unboundedPermille(80_000, 0, 1_000_000)).toBe(80);
    expect(unboundedPermille(600_000, 900_000, 1_000_000)).toBe(1000);
  });
});

describe('lending memory', () => {
  it('takes pages from the block cache, evicts cached blocks, and accounts for all pages', () => {
    const groups = [{ layers: 2, window: undefined }];
    const cache = new BlockCache({ pages: 20, blockTokens: 4, groups, eviction: 'lru' });
    const table = new BlockTable(1);
    for (let i = 0; i < 6; i++) cache.allocate(table);
    const words = Uint32Array.from({ length: 24 }, (_, i) => i + 1);
    cache.cacheBlocks({ blocks: 6, words }, 0, 6, table);
    cache.release(table);
    const lent = Array.from({ length: 7 }, () => cache.lending.allocate('remote'));
    cache.check();
    expect([cache.lentPages, cache.cachedPages, cache.pages.free]).toEqual([14, 6, 0]);
    const own = cache.lending.allocate('local');
    expect(() => cache.lending.free('remote', own ?? 0)).toThrow(/the remote caller does not hold it/);
    for (let i = 0; i < 2; i++) expect(cache.lending.allocate('local')).toBeDefined();
    expect(cache.lending.allocate('remote')).toBeUndefined();
    for (const block of lent) cache.lending.free('remote', block ?? 0);
    cache.check();
    expect(cache.lentPages).toBe(0);
  });

  it('throws when a block is freed twice', () => {
    const memory = LendingMemory.standalone(4, 1);
    const block = memory.allocate('remote') ?? 0;
    memory.free('remote', block);
    expect(() => memory.free('remote', block)).toThrow(/Cannot free a block/);
    memory.checkStandalone();
  });
});
