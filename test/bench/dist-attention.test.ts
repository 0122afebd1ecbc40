// The bench of attention over two instances: bytes by the formulas, and the bits of one instance.
import { expect, it } from 'vitest';
import { benchDistAttention } from '../../src/bench/dist-attention.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';

it.skipIf(loadNative() === undefined)(
  'counts rows and partials against pages, and keeps the bits of one pool',
  async () => {
    const [two, debtor, creditor] = [2, 1, 1].map((threads) => createNativeBackend({ threads }));
    if (two === undefined || debtor === undefined || creditor === undefined) throw new Error('no backends');
    try {
      const { split, shipping } = await benchDistAttention({
        ...{ two, debtor, creditor, layers: 2, contexts: [2048, 3072], remote: [1024, 1536], repeats: 2 },
        transport: 'shared',
        onProgress: () => {},
      });
      expect(split.map(({ context, sameBits }) => [context, sameBits])).toEqual([
        [2048, true],
        [3072, true],
      ]);
      // A layer: a query row of 32 heads of 64 in bf16, and 64 + 2 float32 for each head and subtree; 1536 tokens are two subtrees.
      const [one, more] = shipping;
      expect(one?.shippedBytes).toBe(2 * (32 * 64 * 2 + 32 * 66 * 4));
      expect(more?.shippedBytes).toBe(2 * (32 * 64 * 2 + 2 * 32 * 66 * 4));
      expect(one?.fetchedBytes).toBe(2 * 1024 * 2 * 8 * 64 * 2);
    } finally {
      for (const backend of [two, debtor, creditor]) backend.close();
    }
  },
);
