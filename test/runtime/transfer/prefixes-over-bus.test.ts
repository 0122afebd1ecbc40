// Prefix fetch between processes over a bus and tcp: the bits of one instance, and no page held after a peer leaves.
import { describe, expect, it } from 'vitest';
import type { RequestId } from '../../../src/core/protocol/ids.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import type { JoinedInstance } from '../../../src/runtime/processes/join.ts';
import { busMembers, serving, until } from '../processes/bus-members.ts';
import { type BusFaults, faultyBus } from '../processes/faulty-bus.ts';
import { type Answer, answerOf, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';

const members = busMembers();
/** Rounds until something was fetched. */
const roundsMax = 30;
async function cluster(
  faults: BusFaults,
): Promise<{ readonly gateway: ClusterGateway; readonly other: JoinedInstance }> {
  const hub = new MemoryHub();
  const bus = (seed: number) => faultyBus(hub.connect(), seed, faults);
  const gateway = await members.gateway(bus(1), { traces: true });
  const [, other] = await Promise.all([members.instance(bus(3), 'a'), members.instance(bus(4), 'b')]);
  await until(() => serving(gateway) === 2);
  return { gateway, other };
}

const bits = ({ tokens, logprobs, end }: Answer) => ({ tokens, logprobs, end });
const idle = (gateway: ClusterGateway) => until(() => gateway.snapshot().pages.used + gateway.snapshot().running === 0);
const fetched = (gateway: ClusterGateway) => gateway.instances().reduce((sum, { sent }) => sum + (sent?.bytes ?? 0), 0);
const tails = Array.from({ length: 10 }, (_, tail) => tail + 1);
const requestOf = (round: number, name: RequestId, tail: number) =>
  liveRequest(`${name}${round}.${tail}`, [...livePrompt(round, 400), ...livePrompt(tail + 50, 20)], 4);

/** One instance has a prefix; then more requests with it arrive than that instance can serve. */
async function round(gateway: ClusterGateway, number: number): Promise<readonly Promise<Answer>[]> {
  await answerOf(gateway, requestOf(number, 'first', 0));
  return tails.map((tail) => answerOf(gateway, requestOf(number, 'r', tail)));
}

const calm = { lost: 0, duplicated: 0, delayed: 0 };

describe.skipIf(loadNative() === undefined)(
  'a prefix that an instance of another process has',
  { timeout: 180_000 },
  () => {
    it.each<[string, BusFaults]>([
      ['delivers everything', calm],
      ['loses, doubles and reorders', { lost: 0.05, duplicated: 0.1, delayed: 0.1 }],
    ])('gives the bits of one instance over a bus that %s', async (_, faults) => {
      const alone = liveCluster([{}]);
      members.closes(() => alone.close());
      await alone.ready();
      const { gateway } = await cluster(faults);
      const ids: RequestId[] = [];
      const fetches = () =>
        ids.flatMap((id) => gateway.requestTrace(id)?.steps.filter(({ kind }) => kind === 'fetch') ?? []);
      // A fetch that takes too long is cancelled, but counts in `fetched`.
      const isWhole = () => fetches().some(({ aborted, rows }) => !aborted && rows >= 32);
      for (let number = 0; number < roundsMax && !isWhole(); number++) {
        ids.push(...tails.map((tail) => requestOf(number, 'r', tail).id));
        const answers = await Promise.all(await round(gateway, number));
        const expected = await Promise.all(tails.map((tail) => answerOf(alone, requestOf(number, 'r', tail))));
        expect(answers.map(bits)).toEqual(expected.map(bits));
        await idle(gateway);
      }
      expect(isWhole()).toBe(true);
      await until(() => fetched(gateway) > 0);
      for (const { startedUs, endedUs } of fetches()) expect(endedUs).toBeGreaterThanOrEqual(startedUs);
    });

    it('leaks no pages when requests are cancelled or the peer leaves', async () => {
      const { gateway, other } = await cluster(calm);
      for (let number = 0; number < roundsMax && fetched(gateway) === 0; number++) {
        const answers = await round(gateway, number);
        for (const tail of [2, 5, 8]) gateway.cancel(`r${number}.${tail}`);
        await Promise.all(answers.filter((_, i) => ![2, 5, 8].includes(tails[i] ?? 0)));
        await idle(gateway);
      }
      expect(fetched(gateway)).toBeGreaterThan(0);
      const answers = await round(gateway, roundsMax);
      await other.close();
      for (const { end } of await Promise.all(answers)) expect(end).toEqual({ kind: 'finished', reason: 'length' });
      await idle(gateway);
    });
  },
);
