// Pipeline groups whose instances lend to one another: prompts longer than every pool, the bits of one instance, and no leaks.
import { afterEach, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { answerOf, borrowingCluster, cancelled, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';

const open: LiveCluster[] = [];
afterEach(() => Promise.all(open.splice(0).map((cluster) => cluster.close())));

async function started(cluster: LiveCluster): Promise<LiveCluster> {
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

/** Resolves when all instances are idle and nothing is lent. */
async function atRest(cluster: LiveCluster): Promise<void> {
  const busy = () =>
    cluster.instances().some(({ waiting, running, pages, lending }) => {
      const held = waiting + running + pages.used + (lending?.lentBlocks ?? 0) + (lending?.borrowedBlocks ?? 0);
      return held > 0;
    });
  while (busy()) await new Promise((resolve) => setTimeout(resolve, 5));
}

const chunksAt = (cluster: LiveCluster, place: number) =>
  cluster.instances().reduce((sum, { pipelineChunks }) => sum + (pipelineChunks?.[place] ?? 0), 0);
const roles = (['prefill', 'prefill', 'decode'] as const).map((role) => ({ role }));

describe.skipIf(loadNative() === undefined)('groups of instances that borrow', () => {
  it('compute a prompt that fits none of them, with the bits of one large instance', async () => {
    const pipeline = { members: 2, tokensOver: 300 };
    const alone = await started(liveCluster([{ contextTokens: 4096, kvBytes: 32 * 2 ** 20 }]));
    const cluster = await started(
      borrowingCluster([44, 44, 44], {}, { contextTokens: 3000 }, roles, 'memory', false, pipeline),
    );
    // 60 blocks: half of the layers take 30 at each member, and the decode instance borrows.
    const long = liveRequest('long', livePrompt(1, 1_900), 12);
    const short = liveRequest('scored', livePrompt(2, 1_500), 4);
    const scored = { ...short, sampling: { ...short.sampling, promptLogprobs: true } };
    for (const request of [long, scored]) {
      const [expected, answer] = await Promise.all([answerOf(alone, request), answerOf(cluster, request)]);
      expect(answer.end).toEqual({ kind: 'finished', reason: 'length' });
      expect([answer.tokens, answer.logprobs]).toEqual([expected.tokens, expected.logprobs]);
    }
    expect(chunksAt(cluster, 0)).toBeGreaterThan(1);
    expect(chunksAt(cluster, 1)).toBe(chunksAt(cluster, 0));
    const [first, second, decode] = cluster.instances();
    expect([first, second].map(({ lending }) => lending?.movedBlocks)).toEqual([0, 0]);
    expect(decode.lending?.movedBlocks).toBeGreaterThan(0);
    await cancelled(cluster, liveRequest('cancelled', livePrompt(3, 1_900), 12), 1);
    await atRest(cluster);
  });
});
