// External engines in a NATS cluster: gateways that start later, an engine that starts anew, and engines that refuse.
import { afterEach, expect, it } from 'vitest';
import { engineRoot } from '../../../src/core/fleet/engine-root.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { JoinedEngine } from '../../../src/runtime/fleet/joined-engine.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { admitAll, answerOf, liveRequest } from '../threads/instances.ts';
import { FakeEngine, type FakeEngineOptions } from './fake-engine.ts';

const opened: { close(): unknown }[] = [];
const log = (): void => {};
afterEach(async () => {
  for (const each of opened.splice(0).toReversed()) await each.close();
});

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

async function engine(options: FakeEngineOptions = {}): Promise<FakeEngine> {
  const started = await FakeEngine.start({ blockTokens: 32, ...options });
  opened.push({ close: () => started.kill() });
  return started;
}

async function gatewayOf(hub: MemoryHub, name: string): Promise<ClusterGateway> {
  const bus = hub.connect();
  const agreement = await agreeOn(bus, { modelFingerprint: 'model', root: undefined });
  const gateway = new ClusterGateway({
    ...{ bus, name, incarnation: 1, agreement, queueMax: 64, admission: admitAll, timeoutUs: 60e6, log },
  });
  opened.push(gateway);
  return gateway;
}

/** Joins the engine. Resolves when the gateway can place requests on it. */
async function join(hub: MemoryHub, name: string, { url }: FakeEngine): Promise<void> {
  const [bus, root] = [hub.connect(), engineRoot('model')];
  const agreement = await agreeOn(bus, { modelFingerprint: 'model', root });
  const own = { bus, name, agreement, root, vocabSize: 100_000, log, onReplaced: () => {} };
  const joined = new JoinedEngine({ ...own, engine: { url } });
  opened.push(joined);
  await joined.settled;
}

const promptOf = (first: number) => Array.from({ length: 100 }, (_, i) => first + i);

it('gives a gateway that starts later the blocks that its engine has had before', async () => {
  const [only, hub] = [await engine(), new MemoryHub()];
  const early = await gatewayOf(hub, 'early');
  await join(hub, 'engine', only);
  await until(() => early.readiness().kind === 'ready' && only.hasSubscriber);
  const prompt = promptOf(3);
  await answerOf(early, liveRequest('a', prompt, 2));
  // The engine repeats no event from here on.
  only.kept = 0;
  const late = await gatewayOf(hub, 'late');
  await until(() => late.readiness().kind === 'ready');
  const matched = async (id: string): Promise<number | undefined> => {
    await answerOf(late, liveRequest(id, prompt, 2));
    const [placement] = late.requestTrace(id)?.placements ?? [];
    return placement?.candidates?.[0]?.matchedTokens;
  };
  // The snapshot may follow the announcement: a prompt before it adds no block to the engine.
  const seen = [await matched('0')];
  while (seen.at(-1) !== 96) seen.push(await matched(String(seen.length)));
  expect([only.blocks, only.replays]).toEqual([3, 1]);
});

it('tries a request once on each engine that refuses it for load, and fails with the refusal of the last one', async () => {
  const [engines, hub] = [[await engine(), await engine({ kind: 'sglang' })], new MemoryHub()];
  const gateway = await gatewayOf(hub, 'gateway');
  for (const [i, each] of engines.entries()) await join(hub, `engine-${i}`, each);
  await until(() => gateway.instances().length === 2 && engines.every(({ hasSubscriber }) => hasSubscriber));
  const calls = () => engines.map((each) => each.calls.length);
  const prompt = promptOf(3);
  await answerOf(gateway, liveRequest('warm', prompt, 2));
  const holder = calls().indexOf(1);
  // The engine with the prefix refuses the prompt: the next attempt goes to the other one although the prefix is here.
  engines[holder].refusals = 100;
  await answerOf(gateway, liveRequest('a', prompt, 2));
  expect(calls()).toEqual(holder === 0 ? [2, 1] : [1, 2]);
  engines[1 - holder].refusals = 100;
  const failed = await new Promise((resolve) =>
    gateway.submit(liveRequest('b', prompt, 2), (event) => {
      if (event.kind === 'failed' || event.kind === 'finished') resolve(event);
    }),
  );
  expect(failed).toMatchObject({ kind: 'failed', code: 'KV_OVERLOADED', retryAfterMs: 1000 });
  expect(calls().reduce((sum, each) => sum + each)).toBe(5);
});
