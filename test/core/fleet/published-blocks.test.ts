// Blocks that instances hold, published with their tokens: what a subscriber learns, and in which order.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { EngineBlocks } from '../../../src/core/fleet/engine-blocks.ts';
import { PublishedBlocks } from '../../../src/core/fleet/published-blocks.ts';
import { HashChain, rootDigest } from '../../../src/core/kvcache/block-hash.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import { blockChange, type KvEventBatch } from '../../../src/core/protocol/kv-events.ts';
import { pageTokens } from '../../../src/util/step.ts';

const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };
const hashKey = Uint32Array.of(1, 2, 3, 4);
const { removed, inMemory, onSsd } = blockChange;

/** Instances with their index, the publisher behind it, and a subscriber. */
function world(instances = 1) {
  const blocks = new PublishedBlocks(() => {});
  const index = new PrefixIndex({ instances, blocks: 16, remembered: 16, listener: blocks });
  const numbers = new Array<number>(instances).fill(0);
  const incarnations = new Array<number>(instances).fill(1);
  const subscriber = new EngineBlocks({ root, hashKey, incarnation: 1 });
  const report = (instance: number, changes: readonly (readonly [Uint32Array, number])[], skipped = 0): void => {
    numbers[instance] += 1 + skipped;
    const batch: KvEventBatch = {
      ...{ incarnation: incarnations[instance], number: numbers[instance], changes: changes.length },
      words: Uint32Array.from(changes.flatMap(([digest]) => [...digest])),
      stored: Uint8Array.from(changes.map(([, change]) => change)),
    };
    index.apply(instance, batch);
  };
  /** Its next report is that of a new start. */
  const lose = (instance: number): void => {
    index.removeInstance(instance);
    numbers[instance] = 0;
    incarnations[instance] += 2;
  };
  const take = () => {
    const events = blocks.take();
    subscriber.apply(events);
    return events;
  };
  return { blocks, index, numbers, subscriber, report, lose, take };
}

/** Equal `kind`s begin alike. */
function tokensOf(kind: number, blocks: number): Int32Array {
  return Int32Array.from({ length: blocks * pageTokens }, (_, i) => kind * 1000 + i);
}

function digestsOf(tokens: Int32Array, salt = ''): Uint32Array[] {
  const chain = new HashChain(rootDigest(root, salt, hashKey));
  chain.extend(tokens, tokens.length);
  return Array.from({ length: chain.blocks }, (_, i) => chain.words.slice(4 * i, 4 * i + 4));
}

function heldBy(subscriber: EngineBlocks): string[] {
  const { words } = subscriber.snapshot();
  return Array.from({ length: words.length / 4 }, (_, i) => words.slice(4 * i, 4 * i + 4).join()).sort();
}

const begin = (blocks: PublishedBlocks, id: string, prompt: Int32Array, salt = ''): void =>
  blocks.begun(id, rootDigest(root, salt, hashKey), salt, prompt);

it('publishes a prompt and its output as a chain, the salt with the first block', () => {
  const { blocks, report, take, subscriber } = world();
  const all = tokensOf(1, 3);
  const digests = digestsOf(all, 'tenant');
  begin(blocks, 'a', all.slice(0, 40), 'tenant');
  report(0, [[digests[0], inMemory]]);
  const [first] = take();
  expect(first).toMatchObject({ kind: 'stored', parent: undefined, medium: 'device', extraKeys: ['tenant'] });
  blocks.generated('a', all.slice(40, 70));
  blocks.generated('a', all.slice(50, 70), 10);
  blocks.generated('a', all.slice(70), 30);
  blocks.ended('a');
  report(0, [
    [digests[2], inMemory],
    [digests[1], inMemory],
  ]);
  const [second] = take();
  expect(second).toMatchObject({ kind: 'stored', parent: first.kind === 'stored' && first.hashes[0] });
  expect(second).not.toHaveProperty('extraKeys');
  expect([heldBy(subscriber), subscriber.unknownParents]).toEqual([digests.map((each) => each.join()).sort(), 0]);
});

it('publishes a block only after its tokens are known and the block before it is held', () => {
  const { blocks, report, take, subscriber } = world();
  const all = tokensOf(1, 3);
  const digests = digestsOf(all);
  report(0, [
    [digests[0], inMemory],
    [digests[2], inMemory],
  ]);
  expect(take()).toEqual([]);
  begin(blocks, 'a', all);
  expect(take().map((event) => event.kind === 'stored' && event.hashes.length)).toEqual([1]);
  report(0, [[digests[1], inMemory]]);
  expect(take().map((event) => event.kind === 'stored' && event.hashes.length)).toEqual([2]);
  expect([blocks.size, subscriber.size, subscriber.unknownParents]).toEqual([3, 3, 0]);
});

it('follows a block through the tiers, and loses all with the last instance that has them', () => {
  const { blocks, lose, report, take, subscriber } = world(2);
  const all = tokensOf(1, 2);
  const [first, second] = digestsOf(all);
  begin(blocks, 'a', all);
  report(0, [
    [first, inMemory],
    [second, inMemory],
  ]);
  report(1, [[first, inMemory]]);
  take();
  report(0, [
    [first, onSsd],
    [second, onSsd],
  ]);
  expect(take().map((event) => [event.kind, 'medium' in event && event.medium])).toEqual([
    ['stored', 'disk'],
    ['removed', 'device'],
  ]);
  expect(subscriber.deviceTokens).toBe(pageTokens);
  lose(0);
  expect(take().map(({ kind }) => kind)).toEqual(['removed']);
  lose(1);
  expect(take().map(({ kind }) => kind)).toEqual(['removed', 'cleared']);
  expect([blocks.size, subscriber.size]).toEqual([0, 0]);
});

it('has no events for what a snapshot confirms', () => {
  const { blocks, index, report, take, numbers } = world();
  const all = tokensOf(1, 2);
  const digests = digestsOf(all);
  begin(blocks, 'a', all);
  report(0, [[digests[0], inMemory]]);
  take();
  report(0, [[digests[1], removed]], 3);
  index.restore(0, { incarnation: 1, number: numbers[0], blocks: 1, words: digests[0] });
  expect(take()).toEqual([]);
});

const step = fc.record({
  instance: fc.nat(2),
  kind: fc.nat(3),
  block: fc.nat(5),
  change: fc.constantFrom(removed, inMemory, inMemory, onSsd, 'prompt' as const, 'lost' as const, 'take' as const),
});

it('keeps a subscriber at the held blocks of known prompts, whatever the order', () => {
  const property = fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
    const { blocks, index, report, take, lose, subscriber } = world(3);
    const prompted = new Set<number>();
    for (const { instance, kind, block, change } of steps) {
      if (change === 'take') take();
      else if (change === 'lost') lose(instance);
      else if (change === 'prompt') {
        prompted.add(kind);
        begin(blocks, `${kind}`, tokensOf(kind, 6));
      } else report(instance, [[digestsOf(tokensOf(kind, 6))[block], change]]);
    }
    take();
    const held = heldBy(subscriber);
    const isHeld = (digest: Uint32Array): boolean => index.holdersOf(digest, 0) > 0;
    const chains = [...prompted].map((kind) => digestsOf(tokensOf(kind, 6)));
    const known = chains.flat().filter(isHeld);
    expect(known.map((digest) => digest.join())).toEqual(expect.arrayContaining(held));
    for (const digests of chains) {
      const gap = digests.findIndex((digest) => !isHeld(digest));
      for (const digest of digests.slice(0, gap < 0 ? 6 : gap)) expect(held).toContain(digest.join());
    }
    expect([blocks.size, subscriber.unknownParents]).toEqual([held.length, 0]);
  });
  fc.assert(property, { numRuns: 60 });
});
