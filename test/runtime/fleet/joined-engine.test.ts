// An external engine in a NATS cluster: gateways that start later, and an engine that starts anew.
import { afterEach, expect, it } from 'vitest';
import { engineRoot } from '../../../src/core/fleet/engine-root.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { JoinedEngine } from '../../../src/runtime/fleet/joined-engine.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { admitAll, answerOf, liveRequest } from '../threads/instances.ts';
import { FakeEngine } from './fake-engine.ts';

const opened: { close(): unknown }[] = [];
afterEach(async () => {
  for (const each of opened.splice(0).toReversed()) await each.close();
});

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

it('gives a gateway that starts later the blocks that its engine has had before', async () => {
  const engine = await FakeEngine.start({ blockTokens: 32 });
  opened.push({ close: () => engine.kill() });
  const [hub, root] = [new MemoryHub(), engineRoot('model')];
  const log = (): void => {};
  const gateway = async (name: string): Promise<ClusterGateway> => {
    const bus = hub.connect();
    const agreement = await agreeOn(bus, { modelFingerprint: 'model', root: undefined });
    const own = { bus, name, incarnation: 1, agreement, queueMax: 64, admission: admitAll, timeoutUs: 60e6, log };
    const opening = new ClusterGateway(own);
    opened.push(opening);
    return opening;
  };
  const early = await gateway('early');
  const bus = hub.connect();
  const agreement = await agreeOn(bus, { modelFingerprint: 'model', root });
  const own = { bus, name: 'engine', agreement, root, vocabSize: 100_000, log, onReplaced: () => {} };
  opened.push(new JoinedEngine({ ...own, engine: { url: engine.url } }));
  await until(() => early.readiness().kind === 'ready' && engine.hasSubscriber);
  const prompt = Array.from({ length: 100 }, (_, i) => 3 + i);
  await answerOf(early, liveRequest('a', prompt, 2));
  // The engine repeats no event from here on.
  engine.kept = 0;
  const late = await gateway('late');
  await until(() => late.readiness().kind === 'ready');
  const matched = async (id: string): Promise<number | undefined> => {
    await answerOf(late, liveRequest(id, prompt, 2));
    const [placement] = late.requestTrace(id)?.placements ?? [];
    return placement?.candidates?.[0]?.matchedTokens;
  };
  // The snapshot may follow the announcement: a prompt before it adds no block to the engine.
  const seen = [await matched('0')];
  while (seen.at(-1) !== 96) seen.push(await matched(String(seen.length)));
  expect([engine.blocks, engine.replays]).toEqual([3, 1]);
});
