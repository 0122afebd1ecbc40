// Instances of a process that lend one another memory: requests longer than any pool, the same bits as on one, and nothing left behind.
import { afterEach, describe, expect, it } from 'vitest';
import { availableIsas, loadNative } from '../../src/kernel/native.ts';
import type { LiveCluster } from '../../src/live/live-cluster.ts';
import { answerOf, borrowingCluster, liveCluster, livePrompt, liveRequest } from './instances.ts';

const native = loadNative();
const open: LiveCluster[] = [];
afterEach(() => Promise.all(open.splice(0).map((cluster) => cluster.close())));

async function started(cluster: LiveCluster): Promise<LiveCluster> {
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

/** Resolves when nobody has anything to do, and nothing is lent. */
async function atRest(cluster: LiveCluster): Promise<void> {
  const busy = () =>
    cluster.instances().some(({ ready, waiting, running, pages, lending }) => {
      const held = waiting + running + pages.used + (lending?.lentBlocks ?? 0) + (lending?.borrowedBlocks ?? 0);
      return ready && held > 0;
    });
  while (busy()) await new Promise((resolve) => setTimeout(resolve, 5));
}

describe.skipIf(native === undefined)('instances of a process that borrow', () => {
  const isa = native === undefined ? 'portable' : (availableIsas(native).at(-1) ?? 'portable');
  const pools = [40, 40, 40, 40];

  it.each(['bf16', 'int8', 'f32'] as const)(`give the bits of one big instance: inputs %s, ${isa}`, async (inputs) => {
    const alone = await started(liveCluster([{ inputs, contextTokens: 8192, kvBytes: 128 * 2 ** 20 }]));
    const cluster = await started(borrowingCluster(pools, {}, { inputs }));
    const long = liveRequest('long', livePrompt(1, 3_200), 40);
    const [expected, answer] = await Promise.all([answerOf(alone, long), answerOf(cluster, long)]);
    expect(answer.end).toEqual({ kind: 'finished', reason: 'length' });
    expect([answer.tokens, answer.logprobs]).toEqual([expected.tokens, expected.logprobs]);
    const lending = cluster.instances().map((instance) => instance.lending);
    expect(lending.reduce((sum, each) => sum + (each?.movedBlocks ?? 0), 0)).toBeGreaterThanOrEqual(64);
    await atRest(cluster);
  });
});
