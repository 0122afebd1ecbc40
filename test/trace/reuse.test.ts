// Hit ratios of caches over a trace, against a plain reference cache.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import * as belady from '../../experiments/policies/belady.mjs';
import * as gdsf from '../../experiments/policies/gdsf.mjs';
import * as lru2 from '../../experiments/policies/lru-2.mjs';
import { root } from '../../scripts/root.mjs';
import { type EvictionKind, type EvictionRule, evictionKinds } from '../../src/core/kvcache/eviction.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { BlockTouches } from '../../src/trace/reuse.ts';

const blockTokens = 4;
const realTrace = join(root, '..', 'shared', 'traces', 'mooncake', 'mooncake_trace_1000.jsonl.gz');

/** Prompts as paths in a tree of blocks, so that equal ids follow equal prefixes; the last block may be partial. */
const trace = fc
  .array(
    fc.record({ path: fc.array(fc.nat(2), { minLength: 1, maxLength: 5 }), tail: fc.integer({ min: 1, max: 4 }) }),
    {
      minLength: 1,
      maxLength: 40,
    },
  )
  .map((prompts) => {
    const ids = new Map<string, number>();
    return prompts.map(({ path, tail }, index): TraceRequest => {
      const blocks = path.map((_, i) => {
        // A partial block differs from the full one.
        const key = `${path.slice(0, i + 1)}${i === path.length - 1 ? `/${tail}` : ''}`;
        const id = ids.get(key) ?? ids.size;
        ids.set(key, id);
        return id;
      });
      const inputTokens = (blocks.length - 1) * blockTokens + tail;
      return { index, arrivalUs: index, inputTokens, outputTokens: 1, blocks: Int32Array.from(blocks) };
    });
  });

interface Entry {
  readonly id: number;
  readonly tokens: number;
  readonly depth: number;
  readonly since: number;
  uses: number;
  last: number;
}

const first: Readonly<Record<EvictionKind, (entry: Entry) => readonly number[]>> = {
  lru: ({ last }) => [last],
  lfu: ({ uses, last }) => [uses, last],
  'length-aware': ({ uses, depth, last }) => [uses, -depth, last],
  fifo: ({ since }) => [since],
};

/** Hit ratios by blocks and by tokens. */
function plainly(requests: readonly TraceRequest[], kind: EvictionKind, blocksMax: number, tokensMax: number) {
  const cache: Entry[] = [];
  const held = () => cache.reduce((sum, { tokens }) => sum + tokens, 0);
  let [clock, hits, hitTokens, blocks, tokens] = [0, 0, 0, 0, 0];
  for (const request of requests) {
    request.blocks.forEach((id, i) => {
      clock++;
      const size = Math.min(blockTokens, request.inputTokens - i * blockTokens);
      blocks++;
      tokens += size;
      const entry = cache.find((other) => other.id === id);
      if (entry !== undefined) {
        Object.assign(entry, { uses: entry.uses + 1, last: clock });
        hits++;
        hitTokens += size;
        return;
      }
      if (size > tokensMax) return;
      while (cache.length >= blocksMax || held() + size > tokensMax) {
        const key = first[kind];
        cache.sort(
          (a, b) =>
            key(a)
              .map((k, at) => k - key(b)[at])
              .find((d) => d !== 0) ?? 0,
        );
        cache.shift();
      }
      cache.push({ id, tokens: size, depth: i + 1, since: clock, uses: 1, last: clock });
    });
  }
  return { hitRatioBlocks: hits / blocks, hitRatioTokens: hitTokens / tokens };
}

function touchesOf(requests: readonly TraceRequest[]): BlockTouches {
  const touches = new BlockTouches(blockTokens);
  for (const request of requests) touches.add(request);
  return touches;
}

describe('hit ratios', () => {
  it.each(evictionKinds)('equal those of a plain cache: %s', (eviction) => {
    fc.assert(
      fc.property(trace, fc.integer({ min: 1, max: 12 }), fc.boolean(), (requests, capacity, byTokens) => {
        const bound = byTokens ? { capacityTokens: capacity } : { capacityBlocks: capacity };
        const got = touchesOf(requests).bounded({ eviction, ...bound });
        const expected = plainly(requests, eviction, byTokens ? Infinity : capacity, byTokens ? capacity : Infinity);
        expect(got).toMatchObject(expected);
      }),
    );
  });

  it('of the unbounded cache equal those of a cache that is large enough', () => {
    fc.assert(
      fc.property(trace, (requests) => {
        const touches = touchesOf(requests);
        expect(touches.ideal()).toEqual(touches.bounded({ eviction: 'lru', capacityBlocks: touches.unique }));
      }),
    );
  });

  it('weight each request equally in their means', () => {
    const prompt = (index: number, ids: readonly number[]): TraceRequest => {
      return {
        index,
        arrivalUs: 0,
        inputTokens: ids.length * blockTokens,
        outputTokens: 1,
        blocks: Int32Array.from(ids),
      };
    };
    const touches = touchesOf([prompt(0, [0, 1, 2, 3]), prompt(1, [0]), prompt(2, [0, 1, 4, 5])]);
    expect(touches.ideal()).toMatchObject({ hitRatioBlocks: 3 / 9, meanRequestHitRatioBlocks: (0 + 1 + 1 / 2) / 3 });
    expect([touches.total, touches.unique, touches.usedOnce()]).toEqual([9, 6, 4]);
  });

  it('are 0 if prompts have no blocks', () => {
    const touches = touchesOf([{ index: 0, arrivalUs: 0, inputTokens: 9, outputTokens: 1, blocks: new Int32Array(0) }]);
    expect(touches.ideal().hitRatioBlocks).toBe(0);
  });

  it('of Belady bound those of every order, and of the other policies', () => {
    fc.assert(
      fc.property(trace, fc.integer({ min: 1, max: 12 }), (requests, capacityBlocks) => {
        // One block a request: with several, a block of the running request may be the furthest one.
        const single = requests.map((request) => ({ ...request, inputTokens: 4, blocks: request.blocks.slice(-1) }));
        const touches = new BlockTouches(blockTokens);
        for (const request of single) touches.add(request);
        const ratioOf = (eviction: EvictionRule) => touches.bounded({ eviction, capacityBlocks }).hitRatioBlocks;
        const bound = ratioOf(belady.eviction);
        for (const eviction of [...evictionKinds, lru2.eviction, gdsf.eviction])
          expect(ratioOf(eviction)).toBeLessThanOrEqual(bound);
      }),
    );
  });

  it.skipIf(!existsSync(realTrace))('of Belady bound those of a real trace (needs ../shared/traces)', () => {
    const touches = new BlockTouches(512);
    for (const [index, line] of gunzipSync(readFileSync(realTrace)).toString().trim().split('\n').entries()) {
      const { timestamp, input_length, output_length, hash_ids } = JSON.parse(line);
      const blocks = Int32Array.from(hash_ids as number[]);
      touches.add({
        index,
        arrivalUs: timestamp * 1000,
        inputTokens: input_length,
        outputTokens: output_length,
        blocks,
      });
    }
    const ratios = [belady.eviction, gdsf.eviction, lru2.eviction, 'lru' as const].map((eviction) =>
      touches.bounded({ eviction, capacityBlocks: 1000 }).hitRatioBlocks.toFixed(3),
    );
    expect(ratios).toEqual(['0.363', '0.283', '0.283', '0.283']);
  });
});
