// Copies of hot prefixes: when waits have paid for a transfer, of how many blocks, and to which instance.

import { describe, expect, test } from 'vitest';
import { PrefixMatches } from '../../../src/core/kvcache/events/prefix-index.ts';
import { HotPrefixes } from '../../../src/core/router/placement/hot-prefixes.ts';
import { Placement, type PlacementCosts } from '../../../src/core/router/placement/placement.ts';

const blockTokens = 10;

/** Blocks of two prompts are equal up to `shared`. */
function chainOf(name: number, blocks: number, shared: number) {
  const words = Uint32Array.from({ length: 4 * blocks }, (_, i) => i + 1 + (i < 4 * shared ? 0 : name * 10_000));
  return { blocks, words };
}

interface Scene {
  readonly queueUs: readonly number[];
  readonly blocks: readonly number[];
  readonly transferUsPerToken?: number;
  readonly capacityTokens?: number;
  readonly up?: readonly number[];
}

/** A token takes 10 us to compute, and 20 us to transfer unless given. */
function world() {
  const hot = new HotPrefixes();
  const place = (
    nowUs: number,
    chain: ReturnType<typeof chainOf>,
    { queueUs, blocks, transferUsPerToken = 20, capacityTokens = 100_000, up = queueUs.map(() => 1) }: Scene,
  ) => {
    const matches = new PrefixMatches(blocks.length);
    for (const [i, count] of blocks.entries()) {
      matches.instances[matches.count++] = i;
      matches.blocks[i] = count;
    }
    const costs: PlacementCosts = {
      kinds: 1,
      prefillUs: (_, tokens, cached) => 10 * (tokens - cached),
      transfers: {
        transferUs: (_from, to, tokens) => (to === 3 ? Number.POSITIVE_INFINITY : transferUsPerToken * tokens),
        latencyUs: () => 0,
        backlogUs: () => 0,
      },
      readUs: () => 0,
      overlapUs: () => 0,
    };
    const view = {
      up: Uint8Array.from(up),
      requests: new Int32Array(blocks.length),
      queueUs: Float64Array.from(queueUs),
      kind: new Uint8Array(blocks.length),
      slowness: new Float64Array(blocks.length).fill(1),
    };
    const tokens = chain.blocks * blockTokens + 1;
    const decision = new Placement({ kind: 'cache-aware', seed: [1, 2], balancingThreshold: 1 }, costs).choose(
      { number: 0, tokens, blockTokens, matches },
      view,
    );
    if (decision === undefined) throw new Error('no instance is up');
    const prompt = { chain, tokens, blockTokens, decision, matches, view, costs, capacityTokens: () => capacityTokens };
    return { offer: hot.placed(nowUs, prompt), decision };
  };
  return { place };
}

/** Instance 0 has 20 blocks and is busy for less than a transfer takes; instance 1 is free. */
const busy: Scene = { queueUs: [1500, 0], blocks: [20, 0] };

describe('hot prefixes', () => {
  test('a prefix is copied to the free instance once waits exceed its transfer, and needs new waits then', () => {
    const { place } = world();
    const offers = [0, 1, 2, 3, 4, 5, 6].map((i) => place(i, chainOf(i, 21, 20), busy).offer);
    // Each prompt waits 1500 us that a copy avoids, and the transfer of 200 tokens takes 4000 us.
    expect(offers.map((offer) => offer && [offer.to, offer.blocks])).toEqual([
      ...[undefined, undefined, [1, 20]],
      // The waits start again, and the first copy is on its way until 4002 us.
      ...[undefined, undefined, undefined, undefined],
    ]);
    expect(place(5000, chainOf(9, 21, 20), busy).offer?.to).toBe(1);
  });

  test('only the blocks that several prompts share are copied', () => {
    const { place } = world();
    const offers = [0, 1, 2].map((i) => place(i, chainOf(i, 20, 15), busy).offer);
    // A copy of 15 blocks saves 1000 us of each later wait, and takes 3000 us; one of 20 blocks helps one prompt alone.
    expect(offers.map((offer) => offer?.blocks)).toEqual([undefined, undefined, 15]);
  });

  test('waits of the past count less, by half in a minute', () => {
    const { place } = world();
    const minutes = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => place(i * 60e6, chainOf(i, 21, 20), busy).offer);
    expect(minutes.every((offer) => offer === undefined)).toBe(true);
  });

  test('nothing is copied to an instance without memory for it, one that is down, or one that cannot be reached', () => {
    for (const scene of [
      { ...busy, capacityTokens: 8 * 199 },
      { ...busy, up: [1, 0] },
      { queueUs: [1500, 1500, 1500, 0], blocks: [20, 20, 20, 0] },
      { queueUs: [0, 0], blocks: [20, 0] },
    ]) {
      const { place } = world();
      const offers = [0, 1, 2, 3, 4, 5].map((i) => place(i, chainOf(i, 21, 20), scene).offer);
      expect(offers.filter((offer) => offer !== undefined)).toEqual([]);
    }
  });

  test('a prompt that fetches its prefix copies it itself', () => {
    const { place } = world();
    for (let i = 0; i < 6; i++) {
      const { offer, decision } = place(i, chainOf(i, 21, 20), { ...busy, transferUsPerToken: 1 });
      expect([decision.from, offer]).toEqual([0, undefined]);
    }
  });
});
