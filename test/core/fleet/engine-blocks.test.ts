// The limit of the blocks that an external engine may report.
import { expect, it } from 'vitest';
import { EngineBlocks } from '../../../src/core/fleet/engine-blocks.ts';

it('drops all blocks above the limit, and takes the next ones', () => {
  const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };
  const blocks = new EngineBlocks({ root, hashKey: Uint32Array.of(1, 2, 3, 4), incarnation: 1, blocksMax: 4 });
  const stored = (hashes: readonly number[]) => ({
    ...({ kind: 'stored', hashes, parent: undefined, tokens: new Int32Array(16 * hashes.length) } as const),
    ...({ blockTokens: 16, medium: 'device' } as const),
  });
  expect([blocks.apply([stored([1, 2, 3, 4])]), blocks.size]).toEqual([true, 4]);
  expect([blocks.apply([stored([5])]), blocks.size, blocks.deviceTokens]).toEqual([false, 0, 0]);
  expect([blocks.apply([stored([6])]), blocks.size]).toEqual([true, 1]);
});
