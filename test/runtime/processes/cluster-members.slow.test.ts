// Gateways and instances over one bus inside this process: real threads compute, and the bus loses, duplicates and reorders frames.
import { beforeAll, describe, expect, it } from 'vitest';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { PinState } from '../../../src/core/protocol/pin-order.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { joinCluster } from '../../../src/runtime/processes/join.ts';
import { decode, encode } from '../../../src/runtime/wire/codec.ts';
import { decodeFrame } from '../../../src/runtime/wire/frames.ts';
import { readOutputs } from '../../../src/runtime/wire/messages.ts';
import { dyingWorker } from '../../bundled-worker.ts';
import { settled } from '../bus/settled.ts';
import { type Answer, answerOf, liveCluster, livePrompt, liveRequest, liveSettings } from '../threads/instances.ts';
import { busMembers, pagesHere, serving, until, vocabSize } from './bus-members.ts';
import { type BusFaults, faultyBus } from './faulty-bus.ts';

const members = busMembers();
const { root } = members;
const prompts = Array.from({ length: 6 }, (_, kind) => livePrompt(kind, 40 + 13 * kind));
let expected: readonly Answer[] = [];
beforeAll(async () => {
  const alone = liveCluster([{}]);
  await alone.ready();
  expected = await Promise.all(prompts.map((prompt, i) => answerOf(alone, liveRequest(`r${i}`, prompt, 40))));
  await alone.close();
});

const instance = (bus: Bus, name: string, role?: InstanceRole, more: Partial<InstanceSettings> = {}) =>
  members.instance(bus, name, { ...(role && { role }), settings: { contextTokens: 4096, ...more } });
const gateway = (bus: Bus, name: string, timeoutS = 60, traces = false, log = (_: string): void => {}) =>
  members.gateway(bus, { name, timeoutS, traces, log });
const answersOf = (cluster: ClusterGateway, name: string) =>
  Promise.all(prompts.map((prompt, i) => answerOf(cluster, liveRequest(`${name}${i}`, prompt, 40))));

/** Output of a request that runs for a second or longer. */
const longTokens = 1500;
function startLong(cluster: ClusterGateway) {
  let begin: () => void = () => {};
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const submit: ClusterGateway['submit'] = (request, sink) =>
    cluster.submit(request, (event) => {
      sink(event);
      if (event.kind === 'tokens') begin();
    });
  return { begun, answer: answerOf({ submit }, liveRequest('long', prompts[0] ?? [], longTokens)) };
}

const outputOf = ({ tokens, logprobs, end }: Answer) => [tokens, logprobs, end];

describe('a cluster over a bus', () => {
  it.each<[string, BusFaults]>([
    ['loses', { lost: 0.1, duplicated: 0, delayed: 0 }],
    ['duplicates and reorders', { lost: 0, duplicated: 0.3, delayed: 0.3 }],
    ['loses, duplicates and reorders', { lost: 0.05, duplicated: 0.1, delayed: 0.1 }],
  ])('gives the answers of one process, each once, if the bus %s frames', async (_, faults) => {
    const hub = new MemoryHub();
    const bus = (seed: number) => faultyBus(hub.connect(), seed, faults);
    const [first, second] = [await gateway(bus(1), 'g1'), await gateway(bus(2), 'g2')];
    await Promise.all([instance(bus(3), 'a'), instance(bus(4), 'b')]);
    await until(() => serving(first) === 2 && serving(second) === 2);
    // Both gateways use the same request ids.
    const [one, two] = await Promise.all([answersOf(first, 'r'), answersOf(second, 'r')]);
    expect(one.map(outputOf)).toEqual(expected.map(outputOf));
    expect(two.map(outputOf)).toEqual(expected.map(outputOf));
    await until(() => first.snapshot().pages.used === 0 && first.snapshot().running === 0);
  });

  it('receives heartbeats of an instance that loads its model', async () => {
    const hub = new MemoryHub();
    const subjects: string[] = [];
    hub.connect().subscribe('beat.*', (_, subject) => subjects.push(subject));
    await instance(hub.connect(), 'a');
    await until(() => subjects.includes('beat.instance'));
    expect(subjects[0]).toBe('beat.coming');
  });

  it('finds prefixes from snapshots stored before the gateway joined', async () => {
    const hub = new MemoryHub();
    const first = await gateway(hub.connect(), 'g1');
    await Promise.all([instance(hub.connect(), 'a'), instance(hub.connect(), 'b')]);
    await until(() => serving(first) === 2);
    for (const [i, prompt] of prompts.entries()) await answerOf(first, liveRequest(`r${i}`, prompt, 2));
    const stored = new Set<string>();
    hub.connect().subscribe('link.g2.>', (payload, subject) => {
      const frame = decodeFrame(payload);
      if (frame.kind !== 'part' || !frame.last) return;
      const outputs = readOutputs(frame.bytes);
      // No instance sends a snapshot over its session.
      expect(outputs.kvSnapshot).toBeUndefined();
      if (outputs.snapshotNumber !== undefined) stored.add(subject);
    });
    const late = await gateway(hub.connect(), 'g2');
    await until(() => stored.size === 2);
    await settled();
    for (const [i, prompt] of prompts.entries()) {
      const { cachedTokens } = await answerOf(late, liveRequest(`r${i}`, prompt, 2));
      const [placed] = late.requestTrace(`r${i}`)?.placements ?? [];
      const candidates = placed?.candidates ?? [];
      const matched = Math.max(...candidates.map(({ matchedTokens }) => matchedTokens));
      expect(matched).toBe(Math.floor((prompt.length - 1) / 32) * 32);
      // The other instance may be predicted to compute a short prompt sooner than this one finds it.
      const chosen = candidates.find(({ instance }) => instance === placed?.instance);
      expect(cachedTokens).toBe(chosen?.matchedTokens);
    }
  });

  it('pins prefixes for each gateway, and unpins those of a lost gateway', async () => {
    const hub = new MemoryHub();
    const [first, second] = [await gateway(hub.connect(), 'g1'), await gateway(hub.connect(), 'g2')];
    await instance(hub.connect(), 'a', 'mixed', { pinShare: 0.5 });
    await until(() => serving(first) === 1 && serving(second) === 1);
    const pinned = (cluster: ClusterGateway, kind: number, id = 'p') =>
      new Promise<PinState>((resolve) => {
        const request = liveRequest(id, livePrompt(kind, 100), 1);
        cluster.pin({ id, request, ttlUs: 600e6 }, resolve);
      });
    expect(await pinned(first, 1)).toMatchObject({ kind: 'pinned', tokens: 96 });
    expect(await pinned(second, 2)).toMatchObject({ kind: 'pinned', tokens: 96 });
    expect(await pinned(second, 3, 'short')).toMatchObject({ kind: 'pinned' });
    const unpinned = new Promise<PinState>((resolve) => {
      second.pin({ id: 'q', request: liveRequest('q', livePrompt(4, 40), 1), ttlUs: 600e6 }, (state) => {
        if (state.kind === 'pinned') second.unpin('q');
        else resolve(state);
      });
    });
    expect(await unpinned).toEqual({ kind: 'unpinned' });
    // Pinned pages are in use; those of the closed gateway become cache.
    const used = () => second.snapshot().pages.used;
    // Three pins of three pages: an earlier snapshot has fewer.
    await until(() => used() >= 9);
    const before = used();
    first.close();
    await until(() => used() < before);
    expect(used()).toBeGreaterThan(0);
  });

  it('frees the pages of a cancelled request and of the requests of a closed gateway', async () => {
    const hub = new MemoryHub();
    const [first, second] = [await gateway(hub.connect(), 'g1'), await gateway(hub.connect(), 'g2')];
    await instance(hub.connect(), 'a');
    await until(() => serving(first) === 1 && serving(second) === 1);
    await Promise.all([first, second].map((cluster) => startLong(cluster).begun));
    first.cancel('long');
    await until(() => second.snapshot().running === 1);
    second.close();
    await until(() => first.snapshot().running === 0 && first.snapshot().pages.used === 0);
    expect(first.snapshot().generatedTokens).toBeLessThan(2 * longTokens);
  });

  it('a request waits for an instance if none is left, and fails at its timeout', async () => {
    const hub = new MemoryHub();
    const [patient, hasty] = [await gateway(hub.connect(), 'g1'), await gateway(hub.connect(), 'g2', 1)];
    const first = await instance(hub.connect(), 'a');
    await until(() => serving(patient) === 1 && serving(hasty) === 1);
    const [waiting, failing] = [startLong(patient), startLong(hasty)];
    await Promise.all([waiting.begun, failing.begun]);
    await first.close();
    expect((await failing.answer).end).toMatchObject({
      code: 'ENGINE_FAILED',
      message: expect.stringContaining('1 s'),
    });
    await instance(hub.connect(), 'b');
    const { tokens, end } = await waiting.answer;
    expect(end).toEqual({ kind: 'finished', reason: 'length' });
    expect(tokens).toHaveLength(longTokens);
    expect(tokens.slice(0, 40)).toEqual(expected[0]?.tokens);
  });

  it('uses the later of two instances of one name, and the earlier one ends', async () => {
    const hub = new MemoryHub();
    const cluster = await gateway(hub.connect(), 'g1');
    const earlier = await instance(hub.connect(), 'a');
    await until(() => serving(cluster) === 1);
    const { begun, answer } = startLong(cluster);
    await begun;
    const later = await instance(hub.connect(), 'a');
    expect(await earlier.ended).toBe('another process has joined as a');
    await earlier.close();
    expect((await answer).tokens).toHaveLength(longTokens);
    await later.close();
    expect(await later.ended).toContain('the instance ended');
  });

  it('refuses members that differ from the others, and drops members that send malformed messages', async () => {
    const hub = new MemoryHub();
    const log: string[] = [];
    const bus = hub.connect();
    const cluster = await gateway(bus, 'g1', 60, false, (line) => log.push(line));
    await instance(hub.connect(), 'a');
    await until(() => serving(cluster) === 1);
    const otherRoot = { ...root, weightForm: 'q4' };
    const own = {
      bus,
      name: 'c',
      incarnation: 1,
      role: 'mixed',
      pages: pagesHere,
      vocabSize,
      log: () => {},
    } as const;
    await expect(
      joinCluster({ ...own, root: otherRoot, entry: dyingWorker, settings: () => liveSettings }),
    ).rejects.toThrow('Cannot join the cluster: the cluster has weights native, this one has q4');
    const record = await bus.records.read('agreement');
    const { version, ...older } = decode(record?.value ?? new Uint8Array()) as { version: number };
    const revision = await bus.records.write('agreement', encode(older), record?.revision);
    const joining = { ...own, root, entry: dyingWorker, settings: () => liveSettings };
    await expect(joinCluster(joining)).rejects.toThrow(
      `Cannot join the cluster: its processes have wire version none, this one ${version}: none is common`,
    );
    await bus.records.write('agreement', record?.value ?? new Uint8Array(), revision);
    for (const payload of [new Uint8Array(), Uint8Array.of(1, 2, 3), encode({ name: 'x' }), encode({ version: 7 })]) {
      for (const subject of [
        'beat.instance',
        'leave.instance',
        `link.g1.${members.incarnation - 1}.a.${members.incarnation}`,
      ])
        bus.publish(subject, payload);
    }
    expect((await answerOf(cluster, liveRequest('odd', [vocabSize], 4))).end).toMatchObject({
      message: 'Cannot generate: token 100000 is not in the vocabulary of 100000 tokens',
    });
    for (let number = 1; number <= 3; number++)
      bus.publish('beat.instance', encode({ version: 7, name: 'old', incarnation: 1, number }));
    expect((await answersOf(cluster, 'r')).map(outputOf)).toEqual(expected.map(outputOf));
    expect(log.filter((line) => line.startsWith('Refused'))).toEqual([
      `Refused old: its wire version is 7, that of this process ${version}`,
    ]);
  });

  it('gives up a request that crashed four instances, and reports when no instance is left', async () => {
    const hub = new MemoryHub();
    const cluster = await gateway(hub.connect(), 'g1');
    await Promise.all(['a', 'b', 'c', 'd', 'e'].map((name) => instance(hub.connect(), name)));
    await until(() => serving(cluster) === 5);
    const deadly = (id: string) => answerOf(cluster, liveRequest(id, prompts[1] ?? [], 40));
    expect((await deadly('deadly')).end).toMatchObject({
      message: 'Cannot generate: the instance stopped: tried 4 times',
    });
    expect(serving(cluster)).toBe(1);
    expect((await answersOf(cluster, 'r')).map(outputOf)).toEqual(expected.map(outputOf));
    const last = deadly('deadly 2');
    await until(() => serving(cluster) === 0);
    expect((await answerOf(cluster, liveRequest('late', [1], 4))).end).toMatchObject({ code: 'NOT_READY' });
    expect(await Promise.race([last, 'waiting'])).toBe('waiting');
  });
});

describe.skipIf(loadNative() === undefined)('prompts that are prefilled in one process and decoded in another', () => {
  /** Resolves when no instance holds a request, a used page or a receive buffer. */
  const idle = (cluster: ClusterGateway) =>
    until(() => cluster.snapshot().pages.used === 0 && cluster.snapshot().running === 0 && receiveBuffersFree(cluster));
  const receiveBuffersFree = (cluster: ClusterGateway) =>
    cluster
      .instances()
      .every(({ receivePages }) => receivePages === undefined || receivePages.free === receivePages.total);
  const hasPrefilled = (cluster: ClusterGateway) =>
    cluster.instances().map(({ computedPromptTokens }) => computedPromptTokens > 0);

  /** Each token of prompt and output is in a step of the trace; gateways without traces have steps of prompts alone. */
  const checkSteps = (traced: ClusterGateway, other: ClusterGateway): void => {
    let checked = 0;
    for (const [i, prompt] of prompts.entries()) {
      const trace = traced.requestTrace(`r${i}`);
      const [placed, ...others] = trace?.placements ?? [];
      // A retried request: on a busy machine its instance was declared lost.
      if (others.length > 0) continue;
      checked++;
      const steps = trace?.steps.filter(({ kind }) => kind === 'step') ?? [];
      const computed = steps.filter(({ instance }) => instance === placed?.instance);
      const decoded = steps.filter(({ instance }) => instance === placed?.decodeAt);
      const last = computed.at(-1);
      expect((last?.from ?? 0) + (last?.rows ?? 0)).toBe(prompt.length);
      expect(decoded.length).toBeGreaterThanOrEqual(39);
      expect(trace?.blocks).toBeDefined();
      expect(trace?.prefilledUs).toBeDefined();
      expect(placed?.prefillUs).toBeDefined();
      const rows = other.requestTrace(`r${i}`)?.steps.map((step) => step.rows) ?? [];
      expect(rows.every((count) => count > 1)).toBe(true);
    }
    expect(checked).toBeGreaterThan(0);
  };

  it.each<[string, BusFaults]>([
    ['loses no frame', { lost: 0, duplicated: 0, delayed: 0 }],
    ['loses, duplicates and reorders frames', { lost: 0.05, duplicated: 0.1, delayed: 0.1 }],
  ])('have the bits of one process if the bus %s', async (_, faults) => {
    const hub = new MemoryHub();
    const bus = (seed: number) => faultyBus(hub.connect(), seed, faults);
    const [first, second] = [await gateway(bus(1), 'g1', 60, true), await gateway(bus(2), 'g2')];
    await instance(bus(3), 'p', 'prefill');
    await until(() => serving(first) === 1);
    expect((await answerOf(first, liveRequest('early', [1], 4))).end).toMatchObject({ code: 'NOT_READY' });
    await Promise.all([instance(bus(4), 'd', 'decode'), instance(bus(5), 'e', 'decode')]);
    await until(() => serving(first) === 3 && serving(second) === 3);
    const [one, two] = await Promise.all([answersOf(first, 'r'), answersOf(second, 'r')]);
    expect(one.map(outputOf)).toEqual(expected.map(outputOf));
    expect(two.map(outputOf)).toEqual(expected.map(outputOf));
    await idle(first);
    // Reports are up to half a second old.
    await until(() => hasPrefilled(first)[0] === true);
    expect(hasPrefilled(first)).toEqual([true, false, false]);
    // Steps are not repeated after a new session: they are complete if nothing is lost.
    if (faults.lost === 0) checkSteps(first, second);
    // Any gateway may switch a role, unless no instance would be left to prefill.
    expect(first.switchRole(0, 'decode')).toContain('no instance would be left');
    const duringSwitch = answersOf(first, 's');
    expect(second.switchRole(2, 'prefill')).toBeUndefined();
    await until(() => first.roles()[2] === 'prefill');
    expect(first.switchRole(0, 'decode')).toBeUndefined();
    const after = answersOf(second, 't');
    await until(() => second.roles()[0] === 'decode');
    const answers = [await duringSwitch, await after, await answersOf(second, 'u')];
    for (const all of answers) expect(all.map(outputOf)).toEqual(expected.map(outputOf));
    expect([first.roles(), second.roles()]).toEqual([
      ['decode', 'decode', 'prefill'],
      ['decode', 'decode', 'prefill'],
    ]);
    expect(second.requestTrace('u0')?.placements).toMatchObject([{ instance: 2 }]);
    await idle(first);
    const late = await gateway(bus(6), 'g3');
    await until(() => serving(late) === 3);
    expect(late.roles().toSorted()).toEqual(['decode', 'decode', 'prefill']);
  });
});
