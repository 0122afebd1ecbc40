// The limit of the blocks that an external engine may report, and the events that store them again.
import { expect, it } from 'vitest';
import { EngineBlocks } from '../../../src/core/fleet/engine-blocks.ts';
import type { EngineMedium } from '../../../src/core/fleet/engine-kv-event.ts';

const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };

it('drops all blocks above the limit, and takes the next ones', () => {
  const blocks = new EngineBlocks({ root, hashKey: Uint32Array.of(1, 2, 3, 4), incarnation: 1, blocksMax: 4 });
  const stored = (hashes: readonly number[]) => ({
    ...({ kind: 'stored', hashes, parent: undefined, tokens: new Int32Array(16 * hashes.length) } as const),
    ...({ blockTokens: 16, medium: 'device' } as const),
  });
  expect([blocks.apply([stored([1, 2, 3, 4])]), blocks.size]).toEqual([true, 4]);
  expect([blocks.apply([stored([5])]), blocks.size, blocks.deviceTokens]).toEqual([false, 0, 0]);
  expect([blocks.apply([stored([6])]), blocks.size]).toEqual([true, 1]);
});

it('lists events that yield the same blocks elsewhere, parents first, without blocks of unknown prefixes', () => {
  const config = { root, hashKey: Uint32Array.of(1, 2, 3, 4), incarnation: 1, keepsTokens: true };
  const blocks = new EngineBlocks(config);
  const stored = (hash: number, parent: number | undefined, medium: EngineMedium = 'device', salt = '') => ({
    ...({ kind: 'stored', hashes: [hash], parent, tokens: new Int32Array(16).fill(hash) } as const),
    ...{ blockTokens: 16, medium, extraKeys: [salt] },
  });
  const removed = (hash: number) => ({ kind: 'removed', hashes: [hash], medium: 'device' }) as const;
  for (let hash = 1; hash <= 200; hash++) blocks.apply([stored(hash, hash === 1 ? undefined : hash - 1)]);
  blocks.apply([stored(2, 1, 'disk'), stored(300, undefined, 'device', 'salt'), stored(301, 300), stored(302, 300)]);
  // A parent that is stored again comes after its child in the order of storage.
  blocks.apply([removed(1), stored(1, undefined), stored(400, undefined), stored(401, 400), removed(400)]);
  const listed = blocks.storedEvents();
  blocks.apply([removed(200)]);
  const other = new EngineBlocks(config);
  for (const event of listed) expect(other.apply([event])).toBe(true);
  expect([other.size, other.unknownParents, other.deviceTokens]).toEqual([203, 0, 203 * 16]);
  blocks.apply([stored(200, 199), removed(401)]);
  const words = (each: EngineBlocks) => {
    const snapshot = each.snapshot();
    const digests = Array.from({ length: snapshot.words.length / 4 }, (_, i) =>
      snapshot.words.slice(4 * i, 4 * i + 4).join(),
    );
    return { ...snapshot, words: digests.sort() };
  };
  expect(words(other)).toEqual(words(blocks));
});

it('lists a chain that leads back to itself without an end', () => {
  const blocks = new EngineBlocks({ root, hashKey: new Uint32Array(4), incarnation: 1, keepsTokens: true });
  const stored = (hash: number, parent: number | undefined) => ({
    ...({ kind: 'stored', hashes: [hash], parent, tokens: new Int32Array(16), blockTokens: 16 } as const),
    medium: 'device' as const,
  });
  blocks.apply([stored(1, undefined), stored(2, 1), { kind: 'removed', hashes: [1], medium: 'device' }, stored(1, 2)]);
  expect([...blocks.storedEvents()]).toEqual([]);
});
