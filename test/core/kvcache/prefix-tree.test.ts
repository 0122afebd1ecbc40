// The tree of shared prefixes: runs split where prompts diverge, hits, and bounded memory.
import { describe, expect, it } from 'vitest';
import { PrefixTree } from '../../../src/core/kvcache/events/prefix-tree.ts';

/** A chain of blocks with these names. */
function chainOf(...names: readonly number[]) {
  const words = new Uint32Array(4 * names.length);
  for (const [i, name] of names.entries()) words.set([name, name * 31, 7, i], 4 * i);
  return { blocks: names.length, words };
}

const shownBy = (tree: PrefixTree) =>
  tree
    .shared(100, () => 2)
    .map(({ depth, blocks, prompts, hitBlocks, hash }) => [depth, blocks, prompts, hitBlocks, hash]);

describe('shared prefixes', () => {
  it('split where prompts diverge, with parents first', () => {
    const tree = new PrefixTree();
    tree.add(1, chainOf(1, 2, 3, 4), 4, 0);
    expect(shownBy(tree)).toEqual([]);
    tree.add(2, chainOf(1, 2, 9), 3, 2);
    tree.add(3, chainOf(1, 2, 3, 5), 4, 3);
    expect(shownBy(tree)).toEqual([
      [0, 2, 3, 4, '00000002'],
      [2, 1, 2, 1, '00000003'],
    ]);
    const [trunk, branch] = tree.shared(2, () => 3);
    expect([trunk?.parent, branch?.parent, branch?.lastUsedUs, trunk?.holders]).toEqual([undefined, trunk?.id, 3, 3]);
    expect(tree.shared(1, () => 0)).toHaveLength(1);
  });

  it('ignore blocks that are not full, and stay bounded: the oldest leaves go first', () => {
    const tree = new PrefixTree();
    tree.add(0, chainOf(5, 6, 7), 2, 0);
    tree.add(0, chainOf(5, 6, 7), 2, 2);
    expect(shownBy(tree)).toEqual([[0, 2, 2, 2, '00000006']]);
    for (let i = 0; i < 1023; i++) for (let k = 0; k < 2; k++) tree.add(1 + i, chainOf(100 + i), 1, k);
    expect(tree.shared(5000, () => 0)).toHaveLength(1024);
    tree.add(2000, chainOf(50_000), 1, 0);
    expect(tree.shared(5000, () => 0).map(({ hash }) => hash)).not.toContain('00000006');
  });
});
