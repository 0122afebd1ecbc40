// Blocks that leave a block table: whatever order their moves complete in, the remote blocks are contiguous.
import { describe, expect, it } from 'vitest';
import { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import { LendingMemory } from '../../../src/core/kvcache/lending-memory.ts';
import { RemoteBlockMover } from '../../../src/core/lending/debtor/remote-block-mover.ts';
import { spill } from '../../../src/core/lending/debtor/spill.ts';
import { RManager } from '../../../src/core/lending/rmanager.ts';
import { defaultLendingTimes } from '../../../src/core/lending/times.ts';
import type { MoveNumber } from '../../../src/core/protocol/ids.ts';
import { Sequence } from '../../../src/core/scheduler/batching/sequence.ts';

const rangeBlocks = 2;
const blockTokens = 32;
const policy = {
  ...{ lentShareMax: 0.9, lowWaterBlocks: 0, highWaterBlocks: 100, recallBlocks: 0, lookAheadUs: 1, loanBlocksMin: 2 },
  ...{ remoteAttentionPermilleMax: 300, unitBlocks: rangeBlocks },
};

/** A sequence with ten computed blocks in its table, at an instance that has borrowed as many. */
function home() {
  const cache = new BlockCache({
    ...{ pages: 16, blockTokens, groups: [{ layers: 1, window: undefined }], eviction: 'lru', stagingBlocks: 4 },
  });
  const memories = { device: cache.lending, host: LendingMemory.standalone(0, 1) };
  const rmanager = new RManager({
    instance: 0,
    incarnation: 1,
    memories,
    policy,
    times: defaultLendingTimes,
    stagingBlocks: 4,
  });
  const { number: loan } = rmanager.debtor.ask(1, 1, 'device', 10, { reserves: false, urgent: false });
  const lend = {
    kind: 'lend',
    loan,
    blocks: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    leaseUs: 5e6,
    remoteAttentionPermille: 300,
  } as const;
  rmanager.step(0, {
    kind: 'message',
    envelope: { from: 1, fromIncarnation: 1, to: 0, toIncarnation: 1, message: lend },
  });
  const started: MoveNumber[] = [];
  const mover = new RemoteBlockMover({
    ...{ instance: 0, rangeBlocks, cache, rmanager, remoteCacheUs: 0, applyToRManager: () => {} },
    emit: (effect) => {
      if (effect.kind === 'moveBlocks') started.push(effect.move);
    },
  });
  const chain = { blocks: 0, words: new Uint32Array() };
  const sequence = new Sequence({
    ...{ content: { length: 10 * blockTokens, chain, digest: () => {} }, promptLength: 10 * blockTokens, groups: 1 },
    ...{ arrival: 0, priority: 0, samples: true },
  });
  for (let i = 0; i < 10; i++) cache.allocate(sequence.table);
  sequence.computed = 10 * blockTokens;
  const { blocks } = sequence.table.groups[0];
  const rows = () => Array.from({ length: blocks.length }, (_, i) => blocks.at(i));
  const arrive = (numbers: readonly MoveNumber[]): void => {
    for (const number of numbers) mover.arrived(number);
    mover.applyArrived();
    mover.check();
  };
  /** Parts of the blocks that leave from `first` on. */
  const leave = (first: number, count: number): MoveNumber[] => {
    expect(mover.moveOut(sequence, first, count)).toBe(true);
    mover.check();
    mover.fill(undefined);
    return started.splice(0);
  };
  /** Home memory runs short: true if a block leaves. */
  const runsShort = (): boolean =>
    spill({
      batcher: {
        running: [sequence],
        pagesOutstanding: 20,
        capacity: { isOverCapacity: () => true },
        makePrivate: (of, stay) => {
          of.sharedBlocks = cache.makePrivate(of.table, of.sharedBlocks ?? 10, stay);
        },
      },
      ...{ cache, mover, rangeBlocks, lowWaterBlocks: 0, idleBlocks: 10 },
    });
  return { cache, sequence, rows, leave, arrive, runsShort };
}

describe('blocks before the remote ones', () => {
  it.each([false, true])('leave range by range, without a gap: reversed arrival %s', (reversed) => {
    const { sequence, rows, leave, arrive } = home();
    const before = rows();
    arrive(leave(8, 2));
    expect([sequence.remoteFrom, sequence.remoteBlocks, rows()]).toEqual([8, 2, before.slice(0, 8)]);
    const parts = leave(4, 4);
    expect(parts.length).toBe(2);
    const [first = 0, second = 0] = reversed ? parts.toReversed() : parts;
    arrive([first]);
    const here = reversed ? 8 : 6;
    expect([sequence.remoteFrom, sequence.remoteBlocks, rows()]).toEqual([here, 10 - here, before.slice(0, here)]);
    arrive([second]);
    expect([sequence.remoteFrom, sequence.remoteBlocks, rows()]).toEqual([4, 6, before.slice(0, 4)]);
  });
});

it('moves formerly shared blocks as soon as they are exclusive', () => {
  const { cache, sequence, runsShort } = home();
  const { pool } = cache.groups[0];
  // No block is left at home.
  while (cache.availablePages > 0) pool.allocate();
  const shared = Array.from({ length: 9 }, (_, i) => sequence.table.groups[0].blocks.at(i));
  for (const block of shared) pool.retain(block);
  expect([runsShort(), sequence.sharedBlocks]).toEqual([false, 9]);
  for (const block of shared) pool.release(block, false);
  expect(runsShort()).toBe(true);
});
