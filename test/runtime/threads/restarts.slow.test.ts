// Restarts of instances whose threads end: alone, beside others with the weights, and on either side of hand-offs.
import { afterEach, describe, expect, it } from 'vitest';
import type { LendingSnapshot } from '../../../src/core/protocol/ports.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import {
  type Answer,
  admitAll,
  answerOf,
  borrowingCluster,
  liveCluster,
  livePrompt,
  liveRequest,
} from './instances.ts';

const open: LiveCluster[] = [];
afterEach(() => Promise.all(open.splice(0).map((cluster) => cluster.close())));

async function started(...roles: readonly ('mixed' | 'prefill' | 'decode')[]): Promise<LiveCluster> {
  const cluster = liveCluster(
    roles.map((role) => ({ role })),
    'memory',
    admitAll,
    undefined,
    true,
  );
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

const serving = (cluster: LiveCluster) => cluster.instances().map(({ ready }) => ready);
/** Polls until the condition holds; the test's timeout bounds it. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
}

const prompts = [1, 2, 3].map((kind) => livePrompt(kind, 60 + 40 * kind));
const answersOf = (cluster: LiveCluster, name: string) =>
  Promise.all(prompts.map((prompt, i) => answerOf(cluster, liveRequest(`${name}${i}`, prompt, 12))));
const outputOf = ({ tokens, logprobs, end }: Answer) => [tokens, logprobs, end];

describe.skipIf(loadNative() === undefined)('an instance whose thread ends', () => {
  it.each([[['mixed']], [['mixed', 'mixed']], [['prefill', 'decode']]] as const)(
    'restarts and serves as before: %s',
    async (roles) => {
      const cluster = await started(...roles);
      const expected = (await answersOf(cluster, 'a')).map(outputOf);
      // The request crashes its instance, and the next one if it can be retried there.
      await answerOf(cluster, liveRequest('deadly', [1, 2, 3], 4));
      await until(() => serving(cluster).every((ready) => ready));
      expect((await answersOf(cluster, 'b')).map(outputOf)).toEqual(expected);
      await answerOf(cluster, liveRequest('last straw', prompts[0] ?? [], 40));
      await until(() => serving(cluster).every((ready) => ready));
      expect((await answersOf(cluster, 'c')).map(outputOf)).toEqual(expected);
      await until(() => cluster.snapshot().pages.used === 0);
    },
  );

  it('lends and borrows again after its loss as debtor or creditor', async () => {
    const cluster = borrowingCluster([40, 40, 40], {}, {}, [], 'memory', true);
    open.push(cluster);
    await cluster.ready();
    const sum = (of: (lending: LendingSnapshot) => number) =>
      cluster.instances().reduce((all, { lending }) => all + (lending === undefined ? 0 : of(lending)), 0);
    const longRequest = (id: string) => liveRequest(id, livePrompt(1, 2_200), 120);
    const expected = outputOf(await answerOf(cluster, longRequest('a')));
    // A request crashes a creditor, and the next one if it can be retried there, while they hold blocks of a long sequence.
    const borrowing = answerOf(cluster, longRequest('b'));
    await until(() => sum(({ remoteBlocks }) => remoteBlocks) > 0);
    const lent = sum(({ lentBlocks }) => lentBlocks);
    await answerOf(cluster, liveRequest('deadly', [1, 2, 3], 4));
    expect(sum(({ lentBlocks }) => lentBlocks)).toBeLessThan(lent);
    expect(outputOf(await borrowing)).toEqual(expected);
    await until(() => serving(cluster).every((ready) => ready));
    expect(outputOf(await answerOf(cluster, longRequest('last straw')))).toEqual(expected);
    await until(() => serving(cluster).every((ready) => ready));
    await until(() => cluster.snapshot().pages.used + sum((l) => l.lentBlocks + l.borrowedBlocks) === 0);
    expect(outputOf(await answerOf(cluster, longRequest('c')))).toEqual(expected);
  });
});

it('a thread restarts only after all others have received its end, however long their steps are', async () => {
  const flags = new Int32Array(new SharedArrayBuffer(8));
  let onServing: () => void = () => {};
  const servesAgain = new Promise<void>((resolve) => {
    onServing = resolve;
  });
  const cluster = new LiveCluster({
    entry: new URL('./held-worker.mjs', import.meta.url),
    instances: [true, false].map((dies) => ({ role: 'mixed', settings: { dies, flags } })),
    ...{ admission: admitAll, queueMax: 8, restarts: true },
    log: (line) => line.endsWith('serves again') && onServing(),
  });
  open.push(cluster);
  await cluster.ready();
  // One request for each instance.
  for (const id of ['a', 'b']) cluster.submit(liveRequest(id, [1, 2, 3], 4), () => {});
  await servesAgain;
  expect([...flags]).toEqual([1, 0]);
});
