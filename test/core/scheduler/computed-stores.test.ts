// Blocks that host memory copies while a step computes them: they count once the step's result is committed.
import { describe, expect, it } from 'vitest';
import { expectedOutput, promptOf, request, World } from '../instance-world.ts';

const tiered = { pages: 200, contents: { onSsd: undefined } };
const world = (hostBlocks = 40, pages = tiered.pages) =>
  new World({ ...tiered, pages, tiers: { hostBlocks, ssdBlocks: 0 } });

/** Blocks that another request, or another instance, finds in any tier. */
const indexed = ({ instance }: World) => instance.cached.indexedDigests().length / 4;
/** Slots of host memory in use. */
const hostBlocks = ({ instance }: World) => instance.snapshot().tiers?.host.blocks;

describe('a block that the running step computes', () => {
  it('is in host memory once the step is committed, and not before', () => {
    const one = world();
    one.submit(request('a', promptOf(1, 100), { maxTokens: 30 }));
    expect([hostBlocks(one), indexed(one)]).toEqual([3, 0]);
    one.finishStep();
    expect(indexed(one)).toBe(3);
    expect(hostBlocks(one)).toBe(3);
    // The output completes a fourth block.
    one.finishAll();
    expect(hostBlocks(one)).toBe(4);
  });

  it('leaves no trace when the step is aborted, fails, or its request is cancelled', () => {
    const one = world();
    one.submit(request('a', promptOf(1, 100)));
    one.abortStep(50);
    expect([hostBlocks(one), indexed(one)]).toEqual([3, 0]);
    one.cancel('a');
    one.abortStep(0);
    expect([hostBlocks(one), one.running]).toEqual([0, undefined]);
    one.submit(request('b', promptOf(2, 100)));
    one.failStep('broken');
    expect([hostBlocks(one), indexed(one), one.lastOf('b')?.kind]).toEqual([0, 0, 'failed']);
  });

  it('is copied once for equal prompts of one step', () => {
    const one = world();
    const prompts = ['a', 'b'].map((id) => request(id, promptOf(1, 100), { maxTokens: 1 }));
    one.submit(...prompts);
    one.finishAll();
    expect(hostBlocks(one)).toBe(3);
    for (const { id, ...rest } of prompts) expect(one.of(id).tokens).toEqual(expectedOutput({ id, ...rest }).tokens);
  });

  it('returns with the same output when the pool has evicted it, also from a full host memory', () => {
    for (const [host, cached] of [
      [40, 96],
      [2, 32],
    ] as const) {
      const one = world(host, 10);
      const again = (id: string) => request(id, promptOf(1, 100), { maxTokens: 1 });
      for (const asked of [again('a'), request('b', promptOf(2, 100), { maxTokens: 1 }), again('c')]) {
        one.submit(asked);
        one.finishAll();
        expect(one.of(asked.id).tokens).toEqual(expectedOutput(asked).tokens);
      }
      const started = one.of('c').events.find(({ kind }) => kind === 'started');
      expect(started).toMatchObject({ cachedTokens: cached });
      expect(hostBlocks(one)).toBe(Math.min(host, 6));
    }
  });
});
