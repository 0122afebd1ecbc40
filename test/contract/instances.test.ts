// The suite of instances over threads, processes of a cluster, external engines, and external engines of a cluster.

import { engineRoot } from '../../src/core/fleet/engine-root.ts';
import type { PublishedBlocks } from '../../src/core/fleet/published-blocks.ts';
import { MemoryHub } from '../../src/runtime/bus/memory-hub.ts';
import { FleetCluster } from '../../src/runtime/fleet/fleet-cluster.ts';
import { JoinedEngine } from '../../src/runtime/fleet/joined-engine.ts';
import { agreeOn } from '../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../src/runtime/processes/cluster-gateway.ts';
import { joinCluster } from '../../src/runtime/processes/join.ts';
import type { ConductorDriver } from '../../src/runtime/threads/conductor-driver.ts';
import { LiveCluster } from '../../src/runtime/threads/live-cluster.ts';
import { dyingWorker } from '../bundled-worker.ts';
import { FakeEngine } from '../runtime/fleet/fake-engine.ts';
import { pagesHere, vocabSize } from '../runtime/processes/bus-members.ts';
import { admitAll, liveRoot, liveSettings } from '../runtime/threads/instances.ts';
import { describeInstances, type InstancesWorld } from './instances.ts';

/** Pages of a block of the embedded model: one for each layer. */
const pagesOfBlock = 6;
const ownBlocksOf = (port: ConductorDriver) => () =>
  port.instances().reduce((sum, { pages }) => sum + pages.cached / pagesOfBlock, 0);
const settings = { ...liveSettings, instances: 2 };
const quiet = { log: () => {} };
const names = ['a', 'b'] as const;

async function clusterOf(root: ReturnType<typeof liveRoot>, kvEvents: PublishedBlocks) {
  const hub = new MemoryHub();
  const bus = hub.connect();
  const agreement = await agreeOn(bus, { modelFingerprint: root.modelFingerprint, root: undefined });
  const own = { bus, name: 'g', incarnation: 1, agreement, queueMax: 64, admission: admitAll, timeoutUs: 60e6 };
  return { hub, port: new ClusterGateway({ ...own, kvEvents, ...quiet }) };
}

async function engines(): Promise<FakeEngine[]> {
  return Promise.all(names.map(() => FakeEngine.start({ blockTokens: 32 })));
}

/** The engine with the request stops in its stream, and dies. */
function engineWorld(port: ConductorDriver, running: FakeEngine[], close: () => unknown): InstancesWorld {
  const doomed = 'doomed';
  for (const engine of running) engine.stallsAt = (id) => (id.endsWith(doomed) ? 5 : Number.POSITIVE_INFINITY);
  const lose = (): Promise<void> => {
    const [first, second] = running;
    const engine = first.calls.some(({ id }) => id.endsWith(doomed)) ? first : second;
    return engine.kill();
  };
  return {
    ...{ port, doomed, lose, ownBlocks: () => running.reduce((sum, { blocks }) => sum + blocks, 0) },
    close: async () => Promise.all([close(), ...running.map((engine) => engine.kill())]),
  };
}

describeInstances('threads', async (kvEvents) => {
  const port = new LiveCluster({
    ...{ entry: dyingWorker, instances: names.map(() => ({ role: 'mixed' as const, settings })), kvEvents },
    ...{ queueMax: 64, admission: admitAll, restarts: true, ...quiet },
  });
  await port.ready();
  return { port, doomed: 'last straw', lose: () => undefined, ownBlocks: ownBlocksOf(port), close: () => port.close() };
});

describeInstances('processes of a cluster', async (kvEvents) => {
  const root = liveRoot();
  const { hub, port } = await clusterOf(root, kvEvents);
  const joined = await Promise.all(
    names.map((name) => {
      const own = { bus: hub.connect(), name, incarnation: 1, role: 'mixed' as const, root, vocabSize, ...quiet };
      return joinCluster({ ...own, pages: pagesHere, entry: dyingWorker, settings: () => settings });
    }),
  );
  const lose = async (): Promise<void> => {
    const instance = port.requestTrace('long')?.placements.at(-1)?.instance ?? 0;
    await joined[names.indexOf(port.instances()[instance].name as 'a')].close();
  };
  const close = async () => {
    port.close();
    await Promise.all(joined.map((each) => each.close()));
  };
  return { port, doomed: 'long', lose, ownBlocks: ownBlocksOf(port), close };
});

describeInstances('external engines', async (kvEvents) => {
  const running = await engines();
  const port = new FleetCluster({
    ...{ engines: running.map(({ url }) => ({ url })), admission: admitAll, queueMax: 64, kvEvents, ...quiet },
  });
  await port.settled();
  return engineWorld(port, running, () => port.close());
});

describeInstances('external engines of a cluster', async (kvEvents) => {
  const running = await engines();
  const root = engineRoot('model');
  const { hub, port } = await clusterOf(root, kvEvents);
  const joined = await Promise.all(
    names.map(async (name, i) => {
      const bus = hub.connect();
      const agreement = await agreeOn(bus, { modelFingerprint: root.modelFingerprint, root });
      const engine = { url: running[i].url };
      return new JoinedEngine({ ...{ bus, name, agreement, root, engine, vocabSize, onReplaced: () => {} }, ...quiet });
    }),
  );
  await Promise.all(joined.map(({ settled }) => settled));
  return engineWorld(port, running, () => {
    port.close();
    return Promise.all(joined.map((each) => each.close()));
  });
});
