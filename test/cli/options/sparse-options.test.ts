// Options of sparse KV of `serve`: defaults, lists, and combinations that are refused.
import { expect, it } from 'vitest';
import { readOptions, serveOptionsSchema } from '../../../src/cli/options/options.ts';
import { budgetShape, servedSparsity, sparseLayers } from '../../../src/cli/options/sparse-options.ts';

const read = (flags: Readonly<Record<string, unknown>>) => servedSparsity(readOptions(serveOptionsSchema, flags));

it('first-n keeps all tokens in three layers, and chooses by the last 8 queries', () => {
  expect(read({ sparse: 'first-n', sparseBudget: '1024' })).toEqual({
    ...{ shape: 'uniform', budget: 1024, fullLayers: 3, list: [], recent: 32, observed: 8 },
    ...{ pooling: { kind: 'max', width: 11 }, headReduce: 'max', compactEvery: 0, keepsFull: true, pages: undefined },
  });
});

it('a pyramid has no full layers unless they are named', () => {
  expect(read({ sparse: 'pyramid' })).toMatchObject({ shape: 'pyramid', budget: undefined, fullLayers: 0 });
  const given = { sparseFullLayers: 2, sparseWindow: 8, sparseObserve: 64, sparsePooling: 'mean:5' };
  expect(read({ sparse: 'pyramid', ...given, sparseCache: 'none', sparseDecode: 'compact' })).toMatchObject({
    ...{ fullLayers: 2, recent: 8, observed: 64, pooling: { kind: 'mean', width: 5 } },
    ...{ keepsFull: false, compactEvery: 32 },
  });
});

it('quest evicts no tokens and reads pages of layers after the second', () => {
  expect(read({ sparse: 'quest', sparseBudget: 1024, sparseTopP: '0.95' })).toMatchObject({
    ...{ shape: 'uniform', fullLayers: 2, budget: 1024, recent: 0, observed: 1, keepsFull: true },
    pages: { topP: 0.95 },
  });
});

it('models with and without full layers may have lower tiers, and all kinds of attention workers', () => {
  for (const dop of ['1,2', '2,2', 'auto']) expect(read({ sparse: 'first-n', dop })).toBeDefined();
  expect(read({ sparse: 'first-n', dop: '1,2', staggeredBatches: 2, partition: 'requests' })).toBeDefined();
  const instances = [{ role: 'prefill' }, { role: 'decode' }];
  expect(read({ sparse: 'uniform', dop: '1,2', instances })).toBeDefined();
  expect(read({ sparse: 'uniform', borrow: true })).toBeDefined();
  const roles = [{ role: 'prefill' }, { role: 'decode' }];
  expect(read({ sparse: 'uniform', borrow: true, instances: roles })).toBeDefined();
  expect(read({ sparse: 'uniform', cppGroup: 2 })).toBeDefined();
  expect(read({ sparse: 'first-n', instances: [{}, { role: 'store', hostMemory: '1g' }] })).toBeDefined();
  expect(read({ sparse: 'pyramid', hostMemory: '1g' })).toBeDefined();
  expect(read({ sparse: 'first-n', hostMemory: '1g' })).toBeDefined();
  expect(read({ sparse: 'full,64', instances: [{ ssd: 'folder' }] })).toBeDefined();
});

it('a list has the budget of each layer of the model', () => {
  const settings = read({ sparse: 'full,1024,full,512' });
  if (settings === undefined) throw new Error('no settings');
  expect(sparseLayers(settings, 4)).toEqual([false, true, false, true]);
  expect(budgetShape(settings)).toEqual([1024, 512]);
  expect(() => sparseLayers(settings, 5)).toThrow('budgets of 4 layers, the model has 5');
});

it('leaves a sparse layer in the model', () => {
  const settings = read({ sparse: 'first-n' });
  if (settings === undefined) throw new Error('no settings');
  expect(sparseLayers(settings, 5)).toEqual([false, false, false, true, true]);
  expect(() => sparseLayers(settings, 3)).toThrow('--sparse-full-layers 3: the model has 3 layers');
});

it.each([
  [{ sparse: 'top' }, 'write first-n, pyramid, uniform'],
  [{ sparsePooling: 'max:4', sparse: 'uniform' }, 'the width is odd'],
  [{ sparse: 'quest', sparseWindow: 8 }, 'Cannot use --sparse-window: with --sparse quest no token is evicted'],
  [{ sparse: 'uniform', sparseTopP: 0.9 }, 'Cannot use --sparse-top-p: it needs --sparse quest'],
  [{ sparseFullLayers: 2 }, 'Cannot use --sparse-full-layers: it needs --sparse'],
  [{ sparse: 'uniform', sparseBudget: 32 }, 'Cannot use a budget of 32 tokens: the last 32'],
  [{ sparse: 'full,20' }, 'Cannot use a budget of 20 tokens'],
  [{ sparse: 'full,full' }, 'no layer has a budget'],
  [{ sparse: 'full,64', sparseBudget: 64 }, 'Cannot use --sparse-budget with --sparse full,64'],
  [{ sparse: 'first-n', borrow: true }, 'full layers cannot be lent beside sparse ones: remove --borrow'],
  [{ sparse: 'full,64', borrow: true }, 'remove --borrow'],
  [{ sparse: 'first-n', cppGroup: 2 }, 'remove --cpp-group'],
  [
    { sparse: 'quest', kvType: 'q8' },
    'Cannot use --sparse quest: pages of bounds have the type of keys, and --kv-type q8',
  ],
])('refuses %o', (flags, message) => {
  expect(() => read(flags)).toThrow(message);
});
