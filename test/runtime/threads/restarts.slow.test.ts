// Restarts of instances whose threads end: alone, beside others with the weights, and on either side of hand-offs.
import { afterEach, describe, expect, it } from 'vitest';
import type { LendingSnapshot } from '../../../src/core/protocol/ports.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import {
  type Answer,
  answerOf,
  borrowingCluster,
  everyone,
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
    everyone,
    undefined,
    true,
  );
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

const serving = (cluster: LiveCluster) => cluster.instances().map(({ ready }) => ready);
/** The test's own time-out bounds it. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
}

const prompts = [1, 2, 3].map((kind) => livePrompt(kind, 60 + 40 * kind));
const ask = (cluster: LiveCluster, name: string) =>
  Promise.all(prompts.map((prompt, i) => answerOf(cluster, liveRequest(`${name}${i}`, prompt, 12))));
const heard = ({ tokens, logprobs, end }: Answer) => [tokens, logprobs, end];

describe.skipIf(loadNative() === undefined)('an instance whose thread ends', () => {
  it.each([[['mixed']], [['mixed', 'mixed']], [['prefill', 'decode']]] as const)(
    'restarts and serves as before: %s',
    async (roles) => {
      const cluster = await started(...roles);
      const expected = (await ask(cluster, 'a')).map(heard);
      // It is what its instance dies of, and the next one if it can be tried again there.
      await answerOf(cluster, liveRequest('deadly', [1, 2, 3], 4));
      await until(() => serving(cluster).every((ready) => ready));
      expect((await ask(cluster, 'b')).map(heard)).toEqual(expected);
      await answerOf(cluster, liveRequest('last straw', prompts[0] ?? [], 40));
      await until(() => serving(cluster).every((ready) => ready));
      expect((await ask(cluster, 'c')).map(heard)).toEqual(expected);
      await until(() => cluster.snapshot().pages.used === 0);
    },
  );

  it('lends and borrows again, whether it owed or was owed', async () => {
    const cluster = borrowingCluster([40, 40, 40], {}, {}, [], 'memory', true);
    open.push(cluster);
    await cluster.ready();
    const sum = (of: (lending: LendingSnapshot) => number) =>
      cluster.instances().reduce((all, { lending }) => all + (lending === undefined ? 0 : of(lending)), 0);
    const longAs = (id: string) => liveRequest(id, livePrompt(1, 2_200), 120);
    const expected = heard(await answerOf(cluster, longAs('a')));
    // A creditor dies of a request that it is given, and the next one if it can be tried again there, while blocks of a long one lie with them.
    const under = answerOf(cluster, longAs('b'));
    await until(() => sum(({ remoteBlocks }) => remoteBlocks) > 0);
    const lent = sum(({ lentBlocks }) => lentBlocks);
    await answerOf(cluster, liveRequest('deadly', [1, 2, 3], 4));
    expect(sum(({ lentBlocks }) => lentBlocks)).toBeLessThan(lent);
    expect(heard(await under)).toEqual(expected);
    await until(() => serving(cluster).every((ready) => ready));
    expect(heard(await answerOf(cluster, longAs('last straw')))).toEqual(expected);
    await until(() => serving(cluster).every((ready) => ready));
    await until(() => cluster.snapshot().pages.used + sum((l) => l.lentBlocks + l.borrowedBlocks) === 0);
    expect(heard(await answerOf(cluster, longAs('c')))).toEqual(expected);
  });
});

it('a thread restarts only after all others have received its end, however long their steps are', async () => {
  const words = new Int32Array(new SharedArrayBuffer(8));
  let serves: () => void = () => {};
  const again = new Promise<void>((resolve) => {
    serves = resolve;
  });
  const cluster = new LiveCluster({
    entry: new URL('./held-worker.mjs', import.meta.url),
    instances: [true, false].map((dies) => ({ role: 'mixed', settings: { dies, words } })),
    ...{ admission: everyone, queueMax: 8, restarts: true },
    log: (line) => line.endsWith('serves again') && serves(),
  });
  open.push(cluster);
  await cluster.ready();
  // Each has one of them.
  for (const id of ['a', 'b']) cluster.submit(liveRequest(id, [1, 2, 3], 4), () => {});
  await again;
  expect([...words]).toEqual([1, 0]);
});
