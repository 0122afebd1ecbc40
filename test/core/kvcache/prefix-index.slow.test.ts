// The cluster's prefix index: against plain maps over random histories, with batches lost, duplicated and late.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import { PrefixIndex, PrefixMatches } from '../../../src/core/kvcache/events/prefix-index.ts';
import { ReplicaTable } from '../../../src/core/kvcache/events/replica-table.ts';
import type { BlockChain, KvEventBatch, KvSnapshot } from '../../../src/core/protocol/kv-events.ts';
import { scramble } from '../../../src/util/scramble.ts';

/** Digests of block names; few first words, so that slots collide. */
function wordsOf(names: readonly number[]): Uint32Array {
  return Uint32Array.from(names.flatMap((name) => [scramble(name % 7), name, 0, 0]));
}

function chainOf(names: readonly number[]): BlockChain {
  return { blocks: names.length, words: wordsOf(names) };
}

function copy(batch: KvEventBatch): KvEventBatch {
  return { ...batch, words: batch.words.slice(), stored: batch.stored.slice() };
}

/** An instance as a plain set of blocks, with the batches that it has sent. */
class Holder {
  readonly blocks = new Set<number>();
  readonly sent: KvEventBatch[] = [];
  incarnation = 0;
  #log = new KvEventLog(0);

  change(names: readonly number[]): KvEventBatch | undefined {
    for (const name of names) {
      const stored = !this.blocks.delete(name);
      if (stored) this.blocks.add(name);
      this.#log.record(wordsOf([name]), 0, stored);
    }
    if (this.#log.changes === 0) return undefined;
    const batch = this.#log.take();
    this.sent.push(copy(batch));
    return batch;
  }

  restart(): void {
    this.blocks.clear();
    this.#log = new KvEventLog(++this.incarnation);
  }

  snapshot(): KvSnapshot {
    return this.#log.snapshot(wordsOf([...this.blocks]));
  }
}

function expectAll(index: PrefixIndex, holders: readonly Holder[], names: number): void {
  index.check();
  const copies = Array.from({ length: names }, (_, name) => holders.filter(({ blocks }) => blocks.has(name)).length);
  expect(index.replication()).toEqual({
    blocks: copies.filter((count) => count > 0).length,
    onSeveral: copies.filter((count) => count > 1).length,
    copies: copies.reduce((sum, count) => sum + count, 0),
  });
  const out = new PrefixMatches(holders.length);
  // All chains of one block, and one of all blocks.
  const chains = [...Array.from({ length: names }, (_, name) => [name]), Array.from({ length: names }, (_, i) => i)];
  for (const chain of chains) {
    index.match(chainOf(chain), names, out);
    const expected = holders.map(({ blocks }) => {
      const gap = chain.findIndex((name) => !blocks.has(name));
      return gap < 0 ? chain.length : gap;
    });
    expect([...out.blocks]).toEqual(expected);
    expect([...out.instances.subarray(0, out.count)].sort((a, b) => a - b)).toEqual(
      expected.flatMap((length, i) => (length > 0 ? [i] : [])),
    );
  }
  expect(holders.map((_, i) => index.blocksOf(i))).toEqual(holders.map(({ blocks }) => blocks.size));
}

const names = 12;
const action = fc.record({
  instance: fc.nat(9),
  what: fc.constantFrom('change', 'change', 'change', 'lose', 'duplicate', 'late', 'restart', 'fail'),
  blocks: fc.array(fc.nat(names - 1), { maxLength: 8 }),
});

describe('the prefix index', () => {
  test('equals the blocks of every instance, whatever is lost, duplicated or late', () => {
    const met = { gap: 0, stale: 0, applied: 0 };
    fc.assert(
      fc.property(fc.array(action, { minLength: 5, maxLength: 60 }), (actions) => {
        const holders = Array.from({ length: 10 }, () => new Holder());
        const index = new PrefixIndex({ instances: 10, blocks: 4, remembered: 4 });
        const apply = (instance: number, batch: KvEventBatch | undefined) => {
          if (batch === undefined) return;
          met[index.apply(instance, batch)]++;
        };
        for (const { instance, what, blocks } of actions) {
          const holder = holders[instance] as Holder;
          const sent = holder.sent.at(-1 - (blocks.length % 3));
          if (what === 'change') apply(instance, holder.change(blocks));
          else if (what === 'lose') holder.change(blocks);
          else if (what === 'duplicate') apply(instance, holder.sent.at(-1));
          else if (what === 'late') apply(instance, sent);
          else if (what === 'restart') holder.restart();
          else {
            index.removeInstance(instance);
            expect(index.blocksOf(instance)).toBe(0);
            holder.restart();
          }
          index.check();
        }
        for (const [i, holder] of holders.entries()) {
          apply(i, holder.change([0]));
          index.restore(i, holder.snapshot());
          // A snapshot that is applied already, and batches that it includes.
          expect(index.restore(i, holder.snapshot())).toBe(false);
          for (const batch of holder.sent) expect(index.apply(i, batch)).toBe('stale');
        }
        expectAll(index, holders, names);
        for (const [i, holder] of holders.entries())
          expect(index.apply(i, copy(holder.change([3, 5]) as KvEventBatch))).toBe('applied');
        expectAll(index, holders, names);
      }),
      { numRuns: 150 },
    );
    for (const count of Object.values(met)) expect(count).toBeGreaterThan(40);
  });

  test('requests a snapshot at a gap, and again after many batches without one', () => {
    const index = new PrefixIndex({ instances: 1, blocks: 4, remembered: 0 });
    const holder = new Holder();
    index.apply(0, holder.change([1]) as KvEventBatch);
    holder.change([2]);
    const verdicts = Array.from({ length: 65 }, (_, i) => index.apply(0, holder.change([10 + i]) as KvEventBatch));
    expect(verdicts.flatMap((verdict, i) => (verdict === 'gap' ? [i] : []))).toEqual([0, 64]);
    expect(index.blocksOf(0)).toBe(1);
    expect(index.restore(0, holder.snapshot())).toBe(true);
    expect(index.blocksOf(0)).toBe(67);
    expect(index.apply(0, holder.change([1]) as KvEventBatch)).toBe('applied');
    expect(index.blocksOf(0)).toBe(66);
  });

  test('applies an unrequested snapshot that is newer than every batch', () => {
    const index = new PrefixIndex({ instances: 1, blocks: 4, remembered: 0 });
    const holder = new Holder();
    index.apply(0, holder.change([1, 2]) as KvEventBatch);
    holder.change([2, 3, 4]);
    expect(index.restore(0, holder.snapshot())).toBe(true);
    expect(index.blocksOf(0)).toBe(3);
    expect(index.restore(0, holder.snapshot())).toBe(false);
    holder.change([4]);
    expect(index.apply(0, holder.change([5]) as KvEventBatch)).toBe('gap');
  });

  test('distinguishes evicted blocks from new ones, as long as it remembers them', () => {
    const index = new PrefixIndex({ instances: 2, blocks: 100, remembered: 100 });
    const holder = new Holder();
    index.apply(1, holder.change([1, 2]) as KvEventBatch);
    index.apply(1, holder.change([2]) as KvEventBatch);
    expect([0, 1, 2].map((i) => index.replicaState(chainOf([1, 2, 3]), i))).toEqual(['held', 'evicted', 'never seen']);
  });
});

describe('the table of replicas', () => {
  test('equals a map of sets, with few holders and with hundreds, as it grows and drops entries', () => {
    const step = fc.record({
      name: fc.nat(60),
      from: fc.nat(299),
      holders: fc.constantFrom(1, 1, 2, 7, 300),
      add: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 120 }), fc.nat(40), (steps, remembered) => {
        const table = new ReplicaTable(300, 1, remembered);
        const model = new Map<number, Set<number>>();
        const out = new Int32Array(300);
        for (const { name, from, holders, add } of steps) {
          const words = wordsOf([name]);
          const known = model.get(name) ?? new Set();
          model.set(name, known);
          for (let i = 0; i < holders; i++) {
            const instance = (from + i) % 300;
            const changed = add ? !known.has(instance) : known.has(instance);
            if (add) known.add(instance);
            else known.delete(instance);
            expect(add ? table.add(words, 0, instance) : table.remove(words, 0, instance)).toBe(changed);
          }
        }
        table.check();
        let blocks = 0;
        for (const [name, known] of model) {
          const words = wordsOf([name]);
          const listed = out.subarray(0, table.list(table.find(words, 0), out));
          expect([...listed].sort((a, b) => a - b)).toEqual([...known].sort((a, b) => a - b));
          if (known.size > 0) blocks++;
        }
        expect(table.blocks).toBe(blocks);
        table.removeInstance(7);
        table.check();
        expect(table.held[7]).toBe(0);
      }),
      { numRuns: 60 },
    );
  });

  test('drops only blocks without holders', () => {
    const table = new ReplicaTable(1, 20, 0);
    for (let name = 0; name < 20; name++) table.add(wordsOf([name]), 0, 0);
    for (let name = 100; name < 1000; name++) {
      table.add(wordsOf([name]), 0, 0);
      table.remove(wordsOf([name]), 0, 0);
    }
    table.check();
    const states = (from: number, to: number) =>
      new Set(Array.from({ length: to - from }, (_, i) => table.replicaState(wordsOf([from + i]), 0)));
    expect(states(0, 20)).toEqual(new Set(['held']));
    expect(states(100, 1000)).toEqual(new Set(['evicted', 'never seen']));
  });
});
