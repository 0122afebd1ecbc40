// Data structures of util against plain ones: digests, tables, heaps, lists.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { FreeIds } from '../../src/core/kvcache/pools/free-ids.ts';
import { Float64Pool } from '../../src/core/scheduler/executor/float64-pool.ts';
import { blake2s128 } from '../../src/util/blake2s.ts';
import { DigestIndex, DigestTable } from '../../src/util/digest-table.ts';
import { IndexedHeap } from '../../src/util/indexed-heap.ts';
import { Int32List } from '../../src/util/int32-list.ts';

// Python: hashlib.blake2s(words, digest_size=16, key=struct.pack('<4I', 1, 2, 3, 4)), word i of the message being 7919 i.
const vectors: readonly (readonly [words: number, digest: string])[] = [
  [1, '3d310033b4800ac2da860c9ffce3954e'],
  [15, 'cfd3ae388b5b12aa7abf3c9bbfe60ca9'],
  [16, 'c3317b7f7a248a2275f8f613869f5aac'],
  [17, '2b17a940ddeb916c38402e78ab96e878'],
  [31, '33292ba707cb0371f16a00a92b53abbc'],
  [32, 'a76955ce61a3a8d27126a49e4b53fec7'],
];

test.each(vectors)('BLAKE2s of %i words gives the digest of another implementation', (words, digest) => {
  const message = Int32Array.from({ length: words }, (_, i) => i * 7919);
  const out = new Uint32Array(4);
  blake2s128(Uint32Array.of(1, 2, 3, 4), 0, message, 0, words, out, 0);
  expect(Buffer.from(out.buffer).toString('hex')).toBe(digest);
});

test('a digest may be written over its key', () => {
  const words = Uint32Array.of(1, 2, 3, 4);
  blake2s128(words, 0, Int32Array.of(0), 0, 1, words, 0);
  expect(Buffer.from(words.buffer).toString('hex')).toBe(vectors[0]?.[1]);
});

test('an empty message is refused', () => {
  expect(() => blake2s128(new Uint32Array(4), 0, new Int32Array(4), 2, 2, new Uint32Array(4), 0)).toThrow(
    'Cannot hash',
  );
});

test('the digest table behaves like a map, collisions and growth included', () => {
  const operation = fc.record({
    kind: fc.constantFrom('set', 'getOrSet', 'delete', 'deleteIf', 'get'),
    key: fc.nat(60),
    value: fc.nat(1000),
  });
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 400 }), (operations) => {
      const table = new DigestTable(4);
      const map = new Map<number, number>();
      for (const { kind, key, value } of operations) {
        // First words of few values, at the end of the table too, so that probe chains are long and wrap around.
        const words = Uint32Array.of(0, (key % 5) - 3, key, 7, 9);
        if (kind === 'set') {
          table.set(words, 1, value);
          map.set(key, value);
        } else if (kind === 'getOrSet') {
          expect(table.getOrSet(words, 1, value)).toBe(map.get(key));
          if (!map.has(key)) map.set(key, value);
        } else if (kind === 'delete') {
          expect(table.delete(words, 1)).toBe(map.delete(key));
        } else if (kind === 'deleteIf') {
          const asked = value % 2 === 0 ? value : (map.get(key) ?? value);
          expect(table.deleteIf(words, 1, asked)).toBe(map.get(key) === asked && map.delete(key));
        } else {
          expect(table.get(words, 1)).toBe(map.get(key));
        }
        expect(table.size).toBe(map.size);
      }
      for (const [key, value] of map) expect(table.get(Uint32Array.of((key % 5) - 3, key, 7, 9), 0)).toBe(value);
    }),
  );
});

test('the digest index behaves like a map, collisions and growth included', () => {
  const operation = fc.record({ kind: fc.constantFrom('insert', 'insert', 'delete', 'get'), number: fc.nat(60) });
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 400 }), (operations) => {
      const index = new DigestIndex(4);
      const indexed = new Set<number>();
      // Words of few values select the slots, at the end of the table too, so that probe chains are long and wrap around.
      const digests = new Uint32Array(61 * 4);
      for (let number = 0; number < 61; number++) digests.set([7, (number % 5) - 3, number, 9], number * 4);
      for (const { kind, number } of operations) {
        if (kind === 'insert' && !indexed.has(number)) {
          index.insert(digests, number);
          indexed.add(number);
        } else if (kind === 'delete') {
          if (indexed.delete(number)) index.delete(digests, number);
          else expect(() => index.delete(digests, number)).toThrow('is not indexed');
        }
        expect(index.get(digests, digests, number * 4)).toBe(indexed.has(number) ? number : undefined);
        expect(index.size).toBe(indexed.size);
      }
      for (let number = 0; number < 61; number++)
        expect(index.get(digests, digests, number * 4)).toBe(indexed.has(number) ? number : undefined);
    }),
  );
});

test('the heap pops in order after any pushes and removals', () => {
  const operation = fc.record({ kind: fc.constantFrom('push', 'push', 'remove', 'pop'), id: fc.nat(40) });
  fc.assert(
    fc.property(
      fc.array(fc.nat(8), { minLength: 41, maxLength: 41 }),
      fc.array(operation, { maxLength: 300 }),
      (weights, operations) => {
        const compare = (a: number, b: number): number => (weights[a] ?? 0) - (weights[b] ?? 0) || a - b;
        const heap = new IndexedHeap(41, { before: (a, b) => compare(a, b) < 0 });
        const set = new Set<number>();
        const first = (): number | undefined => [...set].sort(compare)[0];
        for (const { kind, id } of operations) {
          if (kind === 'push' && set.has(id)) expect(() => heap.push(id)).toThrow('Cannot push');
          else if (kind === 'push') heap.push(id);
          if (kind === 'push') set.add(id);
          if (kind === 'remove') expect(heap.remove(id)).toBe(set.delete(id));
          if (kind === 'pop') {
            const least = first();
            expect(heap.pop()).toBe(least);
            if (least !== undefined) set.delete(least);
          }
          expect(heap.size).toBe(set.size);
          expect(heap.peek()).toBe(first());
          expect(heap.has(id)).toBe(set.has(id));
        }
      },
    ),
  );
});

test('the list grows, cuts and copies like an array', () => {
  const list = Int32List.from(Int32Array.of(1, 2, 3));
  list.append(Int32Array.of(4, 5, 6, 7), 1, 3);
  for (let i = 0; i < 40; i++) list.push(-i);
  expect(list.length).toBe(45);
  expect([...list.view().subarray(0, 6)]).toEqual([1, 2, 3, 5, 6, 0]);
  expect(list.pop()).toBe(-39);
  list.truncate(2);
  list.set(0, 9);
  expect([...list.view()]).toEqual([9, 2]);
});

test('a pool returns arrays of at least the requested length, and none twice before its release', () => {
  const pool = new Float64Pool();
  const lengths = fc.array(fc.integer({ min: 0, max: 300 }), { maxLength: 30 });
  fc.assert(
    fc.property(lengths, fc.nat(29), (asked, kept) => {
      const taken = asked.map((length) => pool.take(length));
      for (const [i, array] of taken.entries()) expect(array.length).toBeGreaterThanOrEqual(asked[i] ?? 0);
      expect(new Set(taken).size).toBe(taken.length);
      for (const array of taken.slice(kept)) pool.release(array);
    }),
  );
  const array = pool.take(100);
  pool.release(array);
  expect(pool.take(65)).toBe(array);
});

test('free ids are taken like those of a stack with the lowest on top, resets included', () => {
  const operation = fc.record({ kind: fc.constantFrom('take', 'take', 'release', 'reset'), value: fc.nat(30) });
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 100 }), (operations) => {
      const ids = new FreeIds(3, 20);
      const stack = Array.from({ length: 17 }, (_, i) => 19 - i);
      const taken: number[] = [];
      for (const { kind, value } of operations) {
        if (kind === 'take' && stack.length > 0) taken.push(ids.take());
        else if (kind === 'release' && taken.length > 0) {
          const [id] = taken.splice(value % taken.length, 1);
          ids.release(id);
          stack.push(id);
          continue;
        } else if (kind === 'reset') {
          const end = Math.max(3, ...taken.map((id) => id + 1), value);
          ids.reset(end, (id) => !taken.includes(id));
          stack.length = 0;
          for (let id = end - 1; id >= 3; id--) if (!taken.includes(id)) stack.push(id);
        } else continue;
        if (kind === 'take') expect(taken.at(-1)).toBe(stack.pop());
        expect(ids.count).toBe(stack.length);
        for (const id of [...taken, ...ids.released]) expect(id).toBeLessThan(ids.reached);
      }
    }),
  );
});
