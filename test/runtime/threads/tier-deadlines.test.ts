// Reads of a disk that stalls: each is a miss after its deadline, and the disk counts as absent for a time.
import { afterEach, expect, it, vi } from 'vitest';
import { LiveTiers, type TierStore } from '../../../src/runtime/threads/live-tiers.ts';

afterEach(() => void vi.useRealTimers());

it('a read of a dead disk is a miss after its deadline, later ones at once, until the disk is tried again', () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  const counts = { readBytes: 0, readSeconds: 0, writtenBytes: 0, badBlocks: 0, failedWrites: 0, error: '' };
  const [log, read, stopped]: [string[], number[], number[]] = [[], [], []];
  const store: TierStore = {
    ...{ counts, readByLayer: () => 0, write: () => {}, erase: () => {}, results: () => [] },
    read: (job) => void read.push(job),
    stop: (job) => void stopped.push(job),
  };
  const nothing = () => {};
  const loader = { begin: nothing, finish: nothing, beginStoring: nothing, finishStoring: nothing, storedEarly: 0 };
  const tiers = new LiveTiers({
    ...{ copy: nothing, loader, pageBytes: 1, blockBytes: 1, store },
    log: (line) => void log.push(line),
  });
  const what = [{ slot: 0, page: 0, depth: 3, digest: new Uint32Array(4) }];
  const start = (id: string): void => tiers.carryOut({ kind: 'readSsd', id, blocks: 1, to: 3, what } as never);
  start('a');
  vi.advanceTimersByTime(4_999);
  expect(tiers.poll()).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(tiers.poll()).toEqual([{ kind: 'loaded', id: 'a', source: 'ssd', to: 2 }]);
  expect([read, stopped, tiers.nextUs]).toEqual([[1], [1], Number.POSITIVE_INFINITY]);
  start('b');
  expect(tiers.poll()).toEqual([{ kind: 'loaded', id: 'b', source: 'ssd', to: 2 }]);
  vi.advanceTimersByTime(60_000);
  start('c');
  expect(read).toEqual([1, 2]);
  // A slow disk has read something: the tier stays.
  counts.readBytes = 1;
  vi.advanceTimersByTime(5_000);
  expect(tiers.poll()).toHaveLength(1);
  start('d');
  expect(read).toEqual([1, 2, 3]);
  expect(log).toHaveLength(1);
});
