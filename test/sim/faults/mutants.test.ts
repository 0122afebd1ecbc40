// Patches reintroduce known bugs, one at a time: chaos runs must find each within 50 seeds.
import { readdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { runReplacements } from '../../runtime/attention-workers/random-replacements.ts';
import { headOf, Mutants, seedsFrom } from './check-mutant.ts';

const folder = join(root, 'test', 'mutants');
const patches = readdirSync(folder)
  .filter((name) => name.endsWith('.patch'))
  .map((name) => join(folder, name));
/** Patches of the driver of attention workers, which random histories of losses must find. */
const isOfDriver = (patch: string) => basename(patch).startsWith('replacement-');
const count = 50;
/** A seed without faults that finds lost grants. */
const calmSeed = 4;
const mutants = new Mutants();
afterAll(() => mutants.close());

it('finds nothing in the sources as they are', () => {
  expect(mutants.failureWith(undefined, [1, 2, 3])).toBeUndefined();
});

it.each(patches.filter((patch) => !isOfDriver(patch)).map((patch) => ({ patch, ...headOf(patch) })))(
  'finds: $title',
  ({ patch, error, seed }) => {
    expect(mutants.failureWith(patch, seedsFrom(seed, count))).toMatch(error);
  },
);

it.each(patches.filter(isOfDriver).map((patch) => ({ patch, ...headOf(patch) })))(
  'finds: $title',
  async ({ patch, error, seed }) => {
    const { LiveAttentionWorkers } = await import(/* @vite-ignore */ `${mutants.moduleOf(patch)}?${basename(patch)}`);
    expect(() => {
      for (const each of seedsFrom(seed, count)) runReplacements(LiveAttentionWorkers, each);
    }).toThrow(error);
  },
);

it('finds without faults: freed receive buffers are granted to no waiting prompt', () => {
  expect(mutants.failureWith(undefined, [1, 2, 3, 4, 5], true)).toBeUndefined();
  expect(mutants.failureWith(join(folder, 'request-lost-grant.patch'), seedsFrom(calmSeed, count), true)).toMatch(
    'a cycle of waiting',
  );
});
