// Instances of a cluster with attention workers: an instance that leaves in mid-stream, and one that decodes prompts of others.
import { beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { type Answer, answerOf, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';
import { busMembers, serving, until } from './bus-members.ts';

const members = busMembers();
const prompts = [0, 1, 2, 3].map((kind) => livePrompt(kind, 100 + 40 * kind));
const outputTokens = 150;
const shared = { form: 'ranges', modelWorkers: 1, batches: 1 } as const;
const byHeads = { attentionWorkers: { ...shared, partition: 'heads', threads: 2 } } as const;
const byRequests = { attentionWorkers: { ...shared, partition: 'requests', threads: 3 } } as const;
const outputOf = ({ tokens, logprobs, end }: Answer) => [tokens, logprobs, end];

/** Requests of all prompts, and a promise of the first token of each. */
function start(cluster: Pick<ClusterGateway, 'submit'>) {
  const begun: Promise<void>[] = [];
  const answers = prompts.map((prompt, i) => {
    let begin: () => void = () => {};
    begun.push(new Promise((resolve) => (begin = resolve)));
    const submit: ClusterGateway['submit'] = (request, sink) =>
      cluster.submit(request, (event) => {
        sink(event);
        if (event.kind === 'tokens') begin();
      });
    return answerOf({ submit }, liveRequest(`r${i}`, prompt, outputTokens));
  });
  return { begun: Promise.all(begun), answers: Promise.all(answers) };
}

describe.skipIf(loadNative() === undefined)('a cluster with attention workers (needs the native kernels)', () => {
  let expected: readonly unknown[] = [];
  beforeAll(async () => {
    const alone = liveCluster([{}]);
    await alone.ready();
    expected = (await start(alone).answers).map(outputOf);
    await alone.close();
  });

  it('continues the requests of an instance that leaves in mid-stream at another one, with the bits of one instance', async () => {
    const hub = new MemoryHub();
    const cluster = await members.gateway(hub.connect());
    const leaving = await members.instance(hub.connect(), 'a', { settings: { contextTokens: 4096, ...byHeads } });
    await members.instance(hub.connect(), 'b', { settings: { contextTokens: 4096, kvBytes: 2 ** 26, ...byRequests } });
    await until(() => serving(cluster) === 2);
    const { begun, answers } = start(cluster);
    await begun;
    await leaving.close();
    expect((await answers).map(outputOf)).toEqual(expected);
    await until(() => cluster.snapshot().running === 0 && cluster.snapshot().pages.used === 0);
    expect(cluster.instances().map(({ attentionWorkers }) => attentionWorkers?.map(({ ready }) => ready))).toEqual([
      [false, false],
      [true, true, true],
    ]);
  });

  it.each([
    ['by heads', byHeads, [true, true]],
    ['by requests', { ...byRequests, kvBytes: 2 ** 26 }, [true, true, true]],
  ] as const)(
    'decodes the prompts of a prefill instance, %s, with the bits of one instance',
    async (_, own, pulled) => {
      const hub = new MemoryHub();
      const cluster = await members.gateway(hub.connect());
      await Promise.all([
        members.instance(hub.connect(), 'p', { role: 'prefill', settings: { contextTokens: 4096 } }),
        members.instance(hub.connect(), 'd', { role: 'decode', settings: { contextTokens: 4096, ...own } }),
      ]);
      await until(() => serving(cluster) === 2);
      expect((await start(cluster).answers).map(outputOf)).toEqual(expected);
      await until(() => cluster.snapshot().running === 0 && cluster.snapshot().pages.used === 0);
      const roles = cluster.roles();
      const decode = cluster.instances()[roles.indexOf('decode')];
      expect(decode?.computedPromptTokens).toBe(0);
      expect(decode?.attentionWorkers?.map(({ pulledPages = 0 }) => pulledPages > 0)).toEqual(pulled);
    },
  );
});
