// Pipeline prefill between processes over a bus: the bits of one instance with lost, duplicate and late messages and lost members.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { busMembers, serving, until } from '../processes/bus-members.ts';
import { type BusFaults, faultyBus } from '../processes/faulty-bus.ts';
import { type Answer, answerOf, cancelled, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';

const members = busMembers();
const instance = (bus: Bus, name: string, role: InstanceRole, transport: 'auto' | 'tcp' = 'auto') =>
  members.instance(bus, name, { role, transport, settings: { contextTokens: 2048, kvBytes: 8 * 2 ** 20 } });
const gateway = (bus: Bus) => members.gateway(bus, { pipeline: { members: 2, tokensOver: 300 } });
/** Resolves when no instance reports a request. */
const atRest = (cluster: ClusterGateway) =>
  until(() =>
    cluster
      .instances()
      .every(
        ({ ready, waiting, running, pages, receivePages }) =>
          !ready ||
          (waiting + running + pages.used === 0 &&
            (receivePages === undefined || receivePages.free === receivePages.total)),
      ),
  );
const ran = (cluster: ClusterGateway, place: number) =>
  cluster.instances().reduce((sum, { pipelineChunks = [] }) => sum + (pipelineChunks[place] ?? 0), 0);
const bare = ({ tokens, logprobs, end }: Answer) => [tokens, logprobs, end];

const requests = [1000, 385, 640].map((length, kind) => liveRequest(`r${length}`, livePrompt(kind, length), 6));
const named = (name: string): readonly GenerationRequest[] =>
  requests.map((request) => ({ ...request, id: `${name} ${request.id}`, salt: name }));

async function group(bus: (seed: number) => Bus, more: readonly string[] = [], transport: 'auto' | 'tcp' = 'auto') {
  const cluster = await gateway(bus(1));
  const names = ['p', 'q', ...more];
  const joined = await Promise.all(names.map((name, i) => instance(bus(2 + i), name, 'prefill', transport)));
  await instance(bus(9), 'd', 'decode', transport);
  await until(() => serving(cluster) === names.length + 1);
  return { cluster, joined };
}

describe.skipIf(loadNative() === undefined)('groups of instances over a bus', () => {
  let alone: LiveCluster;
  let expected: readonly Answer[];
  beforeAll(async () => {
    alone = liveCluster([{ contextTokens: 2048 }]);
    await alone.ready();
    expected = await Promise.all(requests.map((request) => answerOf(alone, request)));
  });
  afterAll(() => alone.close());

  /** A prompt that extends one at its decode instance; without faults, repeated until a group gets the prefix in time. */
  async function behindPrefix(cluster: ClusterGateway, all: boolean): Promise<void> {
    const [first] = requests;
    const { prompt } = first;
    const whole = Math.floor(prompt.length / 32) * 32;
    for (let kind = 5; ; kind++) {
      // An instance that computed the prompt alone continues alone, so that each round has another prefix.
      const [id, salt] = [`longer ${all} ${kind}`, `behind ${kind}`];
      await answerOf(cluster, { ...first, id: `first ${id}`, salt });
      const request = { ...liveRequest(id, [...prompt, ...livePrompt(kind, 450)], 6), salt };
      const answer = await answerOf(cluster, request);
      expect(bare(answer)).toEqual(bare(await answerOf(alone, request)));
      const group = cluster.requestTrace(request.id)?.placements.at(-1)?.group;
      if (!all || (answer.cachedTokens === whole && group !== undefined)) return;
    }
  }

  it.each<[string, BusFaults, 'auto' | 'tcp']>([
    ['tells all', { lost: 0, duplicated: 0, delayed: 0 }, 'tcp'],
    ['loses, doubles and reorders', { lost: 0.05, duplicated: 0.1, delayed: 0.1 }, 'auto'],
  ])(
    'compute prompts with the bits of one instance over a bus that %s, and leak nothing of cancelled requests',
    async (_, faults, transport) => {
      const hub = new MemoryHub();
      const { cluster } = await group((seed) => faultyBus(hub.connect(), seed, faults), [], transport);
      const ask = (name: string) => Promise.all(named(name).map((request) => answerOf(cluster, request)));
      // If one of them seemed slow for a while, the other computes alone.
      for (const name of ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'])
        if (ran(cluster, 1) <= requests.length) expect((await ask(name)).map(bare)).toEqual(expected.map(bare));
      await until(() => ran(cluster, 1) > requests.length);
      await behindPrefix(cluster, faults.lost === 0);
      const links = cluster.instances().map(({ activationLinks = [] }) => activationLinks);
      expect(links.flat().every(({ to, bytes }) => bytes > 0 && cluster.roles()[to] === 'prefill')).toBe(true);
      expect(links.flat()).not.toHaveLength(0);
      for (const after of [0, 1, 2, 3]) {
        const [first, ...others] = named(`cancelled ${after}`);
        const answers = others.map((request) => answerOf(cluster, request));
        await cancelled(cluster, first, after);
        expect((await Promise.all(answers)).map(bare)).toEqual(expected.slice(1).map(bare));
      }
      await atRest(cluster);
      expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0 });
    },
  );

  it('answer all requests when a member leaves during its work', async () => {
    const hub = new MemoryHub();
    const { cluster, joined } = await group(() => hub.connect(), ['r']);
    const asked = [...named('x'), ...named('y')];
    let hasLeft = false;
    const answers = asked.map(
      (request) =>
        new Promise<Answer>((resolve) => {
          const submit: ClusterGateway['submit'] = (each, sink) =>
            cluster.submit(each, (event) => {
              sink(event);
              if (event.kind !== 'started' || hasLeft) return;
              hasLeft = true;
              void joined[1].close();
            });
          resolve(answerOf({ submit }, request));
        }),
    );
    expect((await Promise.all(answers)).map(bare)).toEqual([...expected, ...expected].map(bare));
    await until(() => serving(cluster) === 3);
    await atRest(cluster);
  });
});
