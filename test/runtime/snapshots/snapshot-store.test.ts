// Stored snapshots of caches: written in parts, read complete or not at all, one incarnation of an instance at a time.
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { defaultArchiveLimits } from '../../../src/core/kvcache/events/snapshot-archive.ts';
import { defaultChannelConfig } from '../../../src/core/membership/reliable-channel.ts';
import type { KvSnapshot } from '../../../src/core/protocol/kv-events.ts';
import { type Bus, type Snapshots, snapshotsKeptMs } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { ArchiveDriver, limitSnapshot } from '../../../src/runtime/snapshots/archive-driver.ts';
import { readSnapshot, SnapshotWriter, snapshotBytesMax } from '../../../src/runtime/snapshots/snapshot-store.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';

let bus: Bus;
beforeAll(() => {
  bus = new MemoryHub().connect();
});
afterAll(() => bus.close());

/** 40,000 blocks take three parts. */
function snapshotOf(number: number, blocks: number): KvSnapshot {
  return { incarnation: 1, number, blocks, words: new Uint32Array(4 * blocks).fill(number) };
}

/** Calls `act` before each write. */
function withHook(act: (key: string) => Promise<unknown> | undefined): Snapshots {
  const { snapshots } = bus;
  return {
    read: (key) => snapshots.read(key),
    remove: (key, revision) => snapshots.remove(key, revision),
    put: async (key, value) => {
      await act(key);
      return snapshots.put(key, value);
    },
    write: async (key, value, revision) => {
      await act(key);
      return snapshots.write(key, value, revision);
    },
  };
}

const numberRead = async (name: string, incarnation: number, number: number) =>
  (await readSnapshot(bus.snapshots, name, incarnation, number))?.number;

test('a snapshot of any size reads as it was written, until a later one replaces it', async () => {
  const writer = new SnapshotWriter(bus.snapshots, 'a', 7);
  expect(await numberRead('a', 7, 0)).toBeUndefined();
  for (const [number, blocks] of [
    [0, 0],
    [3, 40_000],
    [5, 17_000],
    [9, 1],
  ] as const) {
    expect(await writer.write(snapshotOf(number, blocks))).toBe('written');
    const read = await readSnapshot(bus.snapshots, 'a', 7, number);
    expect(read).toMatchObject({ number, blocks });
    expect(Buffer.compare(Buffer.from(encode(read)), Buffer.from(encode(snapshotOf(number, blocks))))).toBe(0);
  }
  expect(await numberRead('a', 7, 2)).toBe(9);
  expect(await numberRead('a', 7, 10)).toBeUndefined();
  expect(await numberRead('a', 6, 2)).toBeUndefined();
  expect(await numberRead('b', 7, 2)).toBeUndefined();
  await writer.remove();
  expect(await numberRead('a', 7, 0)).toBeUndefined();
  for (const side of [0, 1])
    for (const part of [0, 1, 2]) expect(await bus.snapshots.read(`part.a.${side}.${part}`)).toBeUndefined();
});

test('the previous snapshot is readable until the next one is complete, and an incomplete one never is', async () => {
  const parts: string[] = [];
  const writer = new SnapshotWriter(
    withHook(async (key) => {
      parts.push(key);
      expect(await numberRead('torn', 1, 0)).toBe(parts.length > 4 && parts.length <= 8 ? 1 : undefined);
    }),
    'torn',
    1,
  );
  await writer.write(snapshotOf(1, 40_000));
  await writer.write(snapshotOf(2, 40_000));
  expect(parts.filter((key) => key === 'head.torn')).toHaveLength(2);
  expect(new Set(parts).size).toBe(7);
  // An earlier incarnation still writes.
  const [, written] = parts.slice(4);
  await bus.snapshots.put(written ?? '', new Uint8Array(9));
  expect(await numberRead('torn', 1, 0)).toBeUndefined();
  expect(await writer.write(snapshotOf(3, 4))).toBe('written');
  expect(await numberRead('torn', 1, 3)).toBe(3);
});

test('a snapshot that is overwritten during the read is read again', async () => {
  const writer = new SnapshotWriter(bus.snapshots, 'busy', 1);
  for (const number of [1, 2]) await writer.write(snapshotOf(number, 40_000));
  const { snapshots } = bus;
  let reads = 0;
  const read: Snapshots['read'] = async (key) => {
    if (++reads === 3) for (const number of [3, 4]) await writer.write(snapshotOf(number, 40_000));
    return snapshots.read(key);
  };
  expect((await readSnapshot({ ...snapshots, read }, 'busy', 1, 1))?.number).toBe(4);
});

test('a later incarnation overwrites the snapshot, and the earlier one does not overwrite it again', async () => {
  const [earlier, later] = [1, 2].map((incarnation) => new SnapshotWriter(bus.snapshots, 'twice', incarnation));
  expect(await earlier?.write(snapshotOf(8, 40_000))).toBe('written');
  expect(await later?.write(snapshotOf(1, 1))).toBe('written');
  expect(await numberRead('twice', 1, 0)).toBeUndefined();
  expect(await numberRead('twice', 2, 0)).toBe(1);
  expect(await earlier?.write(snapshotOf(9, 1))).toBe('replaced');
  await earlier?.remove();
  expect(await later?.write(snapshotOf(2, 1))).toBe('written');
  expect(await numberRead('twice', 2, 2)).toBe(2);
});

test('a lost response, a lost head and malformed bytes do not prevent later snapshots', async () => {
  let responseLost = true;
  const { snapshots } = bus;
  const write: Snapshots['write'] = async (...args) => {
    const revision = await snapshots.write(...args);
    if (responseLost) throw new Error('Cannot receive the response');
    return revision;
  };
  const writer = new SnapshotWriter({ ...snapshots, write }, 'lost', 1);
  await expect(writer.write(snapshotOf(1, 1))).rejects.toThrow('Cannot receive');
  responseLost = false;
  expect(await numberRead('lost', 1, 0)).toBe(1);
  expect(await writer.write(snapshotOf(2, 1))).toBe('written');
  const head = await snapshots.read('head.lost');
  await snapshots.remove('head.lost', head?.revision ?? 0);
  expect(await writer.write(snapshotOf(3, 1))).toBe('written');
  await snapshots.put('head.lost', new Uint8Array([1, 2, 3]));
  expect(await numberRead('lost', 1, 0)).toBeUndefined();
  expect(await writer.write(snapshotOf(4, 1))).toBe('written');
  expect(await numberRead('lost', 1, 4)).toBe(4);
});

test('closing does not wait for an unreachable store', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const put: Snapshots['put'] = () => new Promise(() => {});
    const process = { bus: { snapshots: { ...bus.snapshots, put } }, name: 'leaves', incarnation: 1, log: () => {} };
    const archive = new ArchiveDriver<string>(process, { requestSnapshot: () => {}, reportStored: () => {} });
    archive.onRequest('g', false);
    expect([...archive.onKvEvents([], snapshotOf(0, 1))]).toEqual(['g']);
    const closed = archive.close();
    vi.advanceTimersByTime(1_000);
    await closed;
  } finally {
    vi.useRealTimers();
  }
});

test('a snapshot is refreshed long before it expires', () => {
  expect(snapshotsKeptMs).toBeGreaterThan((2 * defaultArchiveLimits.refreshUs) / 1000);
});

test('a snapshot within the block limit fits into the store', () => {
  const { blocksMax } = defaultArchiveLimits;
  const headBytes = encode(snapshotOf(Number.MAX_SAFE_INTEGER, 0)).length;
  const wordsBytes = encode(snapshotOf(0, 1_000)).length - encode(snapshotOf(0, 0)).length;
  expect(headBytes + 64 + (wordsBytes / 1_000) * blocksMax).toBeLessThanOrEqual(snapshotBytesMax);
});

test('a snapshot over the block limit is not written, which is logged once', () => {
  const log: string[] = [];
  let puts = 0;
  const put: Snapshots['put'] = async () => ++puts;
  let requests = 0;
  const snapshots = { ...bus.snapshots, put };
  const process = { bus: { snapshots }, name: 'large', incarnation: 1, log: (line: string) => log.push(line) };
  const archive = new ArchiveDriver<string>(process, { requestSnapshot: () => requests++, reportStored: () => {} });
  const large = { ...snapshotOf(0, 0), blocks: 16_000_001 };
  for (let i = 1; i <= 3; i++) {
    archive.onRequest('g', false);
    expect([...archive.onKvEvents([], large)]).toEqual(['g']);
    expect(requests).toBe(i);
  }
  expect(puts).toBe(0);
  expect(log).toEqual([
    'Cannot store a snapshot of the cache: it has 16000001 blocks, the limit is 16000000; new gateways receive it over their sessions',
  ]);
});

test('a snapshot is limited to one message, blocks in memory first', () => {
  const few = snapshotOf(7, 3);
  expect(limitSnapshot(few)).toBe(few);
  const words = Uint32Array.from({ length: 4 * 4_200_000 }, (_, i) => i);
  const snapshot = { ...snapshotOf(7, 0), blocks: 4_200_000, words, onSsd: 1_100_000 };
  expect(encode(snapshot).length).toBeGreaterThan(defaultChannelConfig.messageBytesMax);
  const limited = limitSnapshot(snapshot);
  expect(encode(limited).length).toBeLessThan(0.8 * defaultChannelConfig.messageBytesMax);
  expect(limited).toMatchObject({ incarnation: 1, number: 7, blocks: 3_145_728, onSsd: 45_728 });
  expect(limited.words.length).toBe(4 * limited.blocks);
  expect([limited.words[0], limited.words.at(-1)]).toEqual([0, 4 * limited.blocks - 1]);
  expect(limitSnapshot({ ...snapshot, onSsd: 9 }).onSsd).toBe(0);
});
