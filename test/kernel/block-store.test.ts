// The block store on SSD: it restores every block that was written completely and no other, for any state of its files.
import {
  copyFileSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { NativeBlockStore } from '../../src/kernel/native/block-store.ts';
import { loadNative } from '../../src/kernel/native/native.ts';

const native = loadNative();
const [pagesOfBlock, slots] = [3, 6];
const identity = new Uint8Array(32).fill(9);
const digestOf = (name: number) => Uint32Array.of(name, name * 77, 5, 6);

let folder: string;
const open: NativeBlockStore[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvasir-store-'));
});
afterEach(() => {
  for (const store of open.splice(0)) store.free();
  rmSync(folder, { recursive: true });
});

/** A block store over a pool of its own. */
class Bench {
  readonly pool = native?.createPool(native.createBackend(0, 1), 1, 2, 4, 64, 0) ?? 0;
  readonly store: NativeBlockStore;
  #wake: () => void = () => {};
  #jobs = 0;

  constructor(count = slots, as = identity) {
    const path = join(folder, 'instance-0');
    this.store = new NativeBlockStore({ pool: this.pool, pagesOfBlock, path, slots: count, identity: as }, () =>
      this.#wake(),
    );
    open.push(this.store);
  }

  close(): void {
    open.splice(open.indexOf(this.store), 1);
    this.store.free();
  }

  /** Writes the block's name to its pages. */
  fill(page: number, name: number): void {
    const values = new Float32Array(native?.pageValues(this.pool) ?? 0);
    for (let i = 0; i < pagesOfBlock; i++) native?.writePage(this.pool, page + i, values.fill(name + i / 8));
  }

  names(page: number): number[] {
    const values = new Float32Array(native?.pageValues(this.pool) ?? 0);
    return Array.from({ length: pagesOfBlock }, (_, i) => {
      native?.readPage(this.pool, page + i, values);
      return new Set(values).size === 1 ? (values[0] ?? 0) : Number.NaN;
    });
  }

  async move(
    how: 'read' | 'write' | 'readByLayer',
    blocks: readonly (readonly [slot: number, page: number, name: number])[],
  ): Promise<number> {
    const job = ++this.#jobs;
    const woken = new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    const stored = blocks.map(([slot, page, name]) => ({ slot, page, depth: name, digest: digestOf(name) }));
    const pages = Int32Array.from(blocks.flatMap(([, page]) => [page, page + 1, page + 2]));
    if (how === 'readByLayer') this.store.readByLayer(job, stored, pages);
    else this.store[how](job, stored);
    await woken;
    return this.store.results().find((result) => result.job === job)?.done ?? Number.NaN;
  }

  async fillAll(): Promise<void> {
    for (let slot = 0; slot < slots; slot++) {
      this.fill(3 * slot, slot + 1);
      expect(await this.move('write', [[slot, 3 * slot, slot + 1]])).toBe(1);
    }
  }
}

const index = () => join(folder, 'instance-0.index');
const blocks = () => join(folder, 'instance-0.blocks');

function change(path: string, at: number, value: number): void {
  const bytes = readFileSync(path);
  bytes[at] = value ^ (bytes[at] ?? 0);
  writeFileSync(path, bytes);
}

async function filled(): Promise<void> {
  const bench = new Bench();
  await bench.fillAll();
  bench.close();
}

describe.skipIf(native === undefined)('the block store on SSD', () => {
  it('reads blocks layer by layer up to the first invalid block', async () => {
    await filled();
    // The first byte of slot 2.
    change(blocks(), Math.floor(statSync(blocks()).size / slots) * 2, 1);
    const bench = new Bench();
    const to = [30, 33, 36].map((page, i) => [i, page, i + 1] as const);
    expect(await bench.move('readByLayer', to)).toBe(2);
    expect([bench.names(30), bench.names(33)]).toEqual([1, 2].map((name) => [name, name + 1 / 8, name + 2 / 8]));
    expect(await bench.move('readByLayer', [[4, 36, 5]])).toBe(1);
    expect(bench.names(36)).toEqual([5, 5 + 1 / 8, 5 + 2 / 8]);
    expect(bench.store.counts).toMatchObject({ badBlocks: 1 });
    expect(() =>
      bench.store.readByLayer(9, [{ slot: 0, page: 0, depth: 1, digest: digestOf(1) }], Int32Array.of(1, 2)),
    ).toThrow('no such slots or pages');
  });

  it('lists the stored blocks in the order of writing after a restart', async () => {
    const before = new Bench();
    await before.fillAll();
    before.fill(30, 9);
    expect(await before.move('write', [[2, 30, 9]])).toBe(1);
    before.close();
    const after = new Bench();
    expect(after.store.note).toBe('');
    const found = after.store.found;
    expect(Array.from({ length: 6 }, (_, i) => found[6 * i])).toEqual([0, 1, 3, 4, 5, 2]);
    expect([...found.slice(30)]).toEqual([2, 9, ...digestOf(9)]);
    expect(
      await after.move('read', [
        [2, 0, 9],
        [5, 3, 6],
      ]),
    ).toBe(2);
    expect([...after.names(0), ...after.names(3)]).toEqual([9, 9.125, 9.25, 6, 6.125, 6.25]);
    // Slot 1 holds another block.
    expect(
      await after.move('read', [
        [0, 6, 1],
        [1, 9, 77],
        [3, 12, 4],
      ]),
    ).toBe(1);
    expect(after.store.counts.badBlocks).toBe(1);
  });

  it('drops a block with a changed bit', async () => {
    await filled();
    const slotBytes = statSync(blocks()).size / slots;
    change(blocks(), 1 * slotBytes + 700, 4);
    change(index(), 4096 + 64 * 3 + 20, 1);
    const bench = new Bench();
    expect(bench.store.found.length / 6).toBe(slots - 1);
    expect(
      await bench.move('read', [
        [0, 0, 1],
        [1, 3, 2],
        [2, 6, 3],
      ]),
    ).toBe(1);
    expect(await bench.move('read', [[3, 0, 4]])).toBe(0);
    bench.close();
    const again = new Bench();
    expect(again.store.found.length / 6).toBe(slots - 2);
  });

  it('refuses a size above the free disk space, and allocates none of it', () => {
    const pool = native?.createPool(native.createBackend(0, 1), 1, 64, 512, 4, 0) ?? 0;
    const path = join(folder, 'instance-0');
    const tooMany = { pool, pagesOfBlock, path, slots: 2 ** 20, identity };
    expect(() => new NativeBlockStore(tooMany, () => {})).toThrow(/ bytes are needed, \d+ are free: No space left/);
    expect(statSync(blocks())).toMatchObject({ size: 0, blocks: 0 });
    open.push(new NativeBlockStore({ ...tooMany, slots: 1 }, () => {}));
  });

  it('loses only the truncated blocks, and keeps the others with another number of slots', async () => {
    await filled();
    const slotBytes = statSync(blocks()).size / slots;
    truncateSync(blocks(), 4 * slotBytes);
    const cut = new Bench();
    expect(cut.store.note).toBe(`Lost 2 blocks of ${blocks()}: it was cut to ${4 * slotBytes} bytes`);
    expect(cut.store.found.length / 6).toBe(4);
    cut.close();
    const smaller = new Bench(2);
    expect(smaller.store.found.length / 6).toBe(2);
    smaller.close();
    const larger = new Bench(20);
    expect(larger.store.found.length / 6).toBe(2);
    larger.fill(0, 8);
    expect(await larger.move('write', [[19, 0, 8]])).toBe(1);
    expect(
      await larger.move('read', [
        [1, 3, 2],
        [19, 6, 8],
      ]),
    ).toBe(2);
    expect([...larger.names(3), ...larger.names(6)]).toEqual([2, 2.125, 2.25, 8, 8.125, 8.25]);
  });

  it.each([
    [
      'of another model',
      (): void => {},
      new Uint8Array(32).fill(8),
      'its blocks are of another model, form, instruction set or cluster',
    ],
    ['of another version', () => change(index(), 8, 3), identity, 'it is of version 2, not 1'],
    ['with a broken header', () => change(index(), 40, 1), identity, 'its header is broken'],
    ['cut in its header', () => truncateSync(index(), 30), identity, 'it was cut short'],
  ] as const)('starts empty over an index %s', async (_, spoil, as, why) => {
    await filled();
    spoil();
    const bench = new Bench(slots, as);
    expect(bench.store.note).toBe(`Reset ${index()}: ${why}`);
    expect(bench.store.found).toHaveLength(0);
    expect(await bench.move('read', [[0, 0, 1]])).toBe(0);
    bench.fill(0, 3);
    expect(await bench.move('write', [[0, 0, 3]])).toBe(1);
    expect(await bench.move('read', [[0, 3, 3]])).toBe(1);
    bench.close();
    expect(new Bench(slots, as).store.found.length / 6).toBe(1);
  });

  it.skipIf(process.platform !== 'linux')('allocates the disk space of blocks and index at once', () => {
    new Bench();
    for (const file of [index(), blocks()]) {
      const { size, blocks: taken } = statSync(file);
      expect(512 * taken).toBeGreaterThanOrEqual(size);
    }
  });

  it('refuses foreign files and files in use, and leaves them unchanged', async () => {
    await filled();
    const used = new Bench();
    expect(() => new Bench()).toThrow(`Cannot keep blocks at ${index()}: another process uses it`);
    used.close();
    const kept = `${blocks()}.kept`;
    copyFileSync(index(), kept);
    writeFileSync(index(), 'a diary, and a long one at that');
    expect(() => new Bench()).toThrow(
      `Cannot keep blocks at ${index()}: it is not a block index: choose another folder`,
    );
    expect(readFileSync(index(), 'utf8')).toContain('diary');
    rmSync(index());
    expect(() => new Bench()).toThrow(/instance-0.blocks: it exists without its index/);
    expect(existsSync(blocks())).toBe(true);
    copyFileSync(kept, index());
    expect(new Bench().store.found.length / 6).toBe(slots);
  });

  it('reads and writes no page of a stopped job', () => {
    const bench = new Bench();
    const job = Array.from({ length: slots }, (_, slot) => ({
      slot,
      page: 3 * slot,
      depth: 1,
      digest: digestOf(slot + 1),
    }));
    for (let round = 1; round <= 50; round++) {
      bench.store.write(2 * round, job);
      bench.store.read(2 * round + 1, job);
      bench.store.stop(2 * round + 1);
      bench.store.stop(2 * round);
      bench.fill(0, round);
      expect(bench.names(0)).toEqual([round, round + 0.125, round + 0.25]);
      expect(bench.store.results()).toEqual([]);
    }
  });
});
