// Prefixes fetched by instances that share nothing but a bus and tcp: the bits of one instance, and nothing held when either side is gone.
import { afterEach, describe, expect, it } from 'vitest';
import type { RequestId } from '../../src/cluster/ports.ts';
import { loadNative } from '../../src/kernel/native.ts';
import { agreeOn } from '../../src/live/agree.ts';
import type { Bus } from '../../src/live/bus/bus.ts';
import { ClusterGateway } from '../../src/live/cluster-gateway.ts';
import { type JoinedInstance, joinCluster } from '../../src/live/join.ts';
import { MemoryHub } from './bus/memory-bus.ts';
import { type BusFaults, faultyBus } from './faulty-bus.ts';
import {
  type Answer,
  answerOf,
  dyingWorker,
  liveCluster,
  livePrompt,
  liveRequest,
  liveRoot,
  liveSettings,
} from './instances.ts';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

const root = liveRoot();
const pages = { host: '127.0.0.1', port: 0, token: undefined };
/** Rounds until something was fetched. */
const roundsMax = 30;
let lives = 0;

async function instance(bus: Bus, name: string): Promise<JoinedInstance> {
  const own = { bus, name, life: ++lives, role: 'mixed', pages, root, vocabSize: 100_000, log: () => {} } as const;
  const joined = await joinCluster({ ...own, entry: dyingWorker, settings: liveSettings });
  closing.push(() => joined.close());
  return joined;
}

async function cluster(
  faults: BusFaults,
): Promise<{ readonly gateway: ClusterGateway; readonly other: JoinedInstance }> {
  const hub = new MemoryHub();
  const bus = (seed: number) => faultyBus(hub.connect(), seed, faults);
  const agreement = await agreeOn(bus(1), { modelFingerprint: root.modelFingerprint, root: undefined });
  const own = {
    bus: bus(2),
    name: 'g',
    life: ++lives,
    agreement,
    queueMax: 64,
    timeoutUs: 60e6,
    log: () => {},
    traces: true,
  };
  const gateway = new ClusterGateway({ ...own, admission: { kind: 'none', slo: undefined, decodeUs: 0 } });
  closing.push(() => gateway.close());
  const [, other] = await Promise.all([instance(bus(3), 'a'), instance(bus(4), 'b')]);
  await until(() => gateway.instances().filter(({ ready }) => ready).length === 2);
  return { gateway, other };
}

/** Asks again until the condition holds; the test's own time-out bounds it. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
}

const bits = ({ tokens, logprobs, end }: Answer) => ({ tokens, logprobs, end });
const idle = (gateway: ClusterGateway) => until(() => gateway.snapshot().pages.used + gateway.snapshot().running === 0);
const fetched = (gateway: ClusterGateway) => gateway.instances().reduce((sum, { sent }) => sum + (sent?.bytes ?? 0), 0);
const tails = Array.from({ length: 10 }, (_, tail) => tail + 1);
const requestOf = (round: number, name: RequestId, tail: number) =>
  liveRequest(`${name}${round}.${tail}`, [...livePrompt(round, 400), ...livePrompt(tail + 50, 20)], 4);

/** One has a prefix; then more come behind it than one can serve. */
async function round(gateway: ClusterGateway, number: number): Promise<readonly Promise<Answer>[]> {
  await answerOf(gateway, requestOf(number, 'first', 0));
  return tails.map((tail) => answerOf(gateway, requestOf(number, 'r', tail)));
}

const calm = { loss: 0, doubled: 0, late: 0 };

describe.skipIf(loadNative() === undefined)(
  'a prefix that an instance of another process has',
  { timeout: 30_000 },
  () => {
    it.each<[string, BusFaults]>([
      ['tells all', calm],
      ['loses, doubles and reorders', { loss: 0.05, doubled: 0.1, late: 0.1 }],
    ])('comes with the bits of one instance over a bus that %s', async (_, faults) => {
      const alone = liveCluster([{}]);
      closing.push(() => alone.close());
      await alone.ready();
      const { gateway } = await cluster(faults);
      const ids: RequestId[] = [];
      const fetches = () =>
        ids.flatMap((id) => gateway.account(id)?.steps.filter(({ kind }) => kind === 'fetch') ?? []);
      // What takes too long is given up, and counts as fetched all the same.
      const isWhole = () => fetches().some(({ aborted, rows }) => !aborted && rows >= 32);
      for (let number = 0; number < roundsMax && !isWhole(); number++) {
        ids.push(...tails.map((tail) => requestOf(number, 'r', tail).id));
        const answers = await Promise.all(await round(gateway, number));
        const expected = await Promise.all(tails.map((tail) => answerOf(alone, requestOf(number, 'r', tail))));
        expect(answers.map(bits)).toEqual(expected.map(bits));
        await idle(gateway);
      }
      expect(fetched(gateway)).toBeGreaterThan(0);
      expect(isWhole()).toBe(true);
      for (const { startedUs, endedUs } of fetches()) expect(endedUs).toBeGreaterThanOrEqual(startedUs);
    });

    it('holds nothing of those that are cancelled, or whose other side has gone', async () => {
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
