// External engines in a NATS cluster: gateways that start later, engines that refuse, and hand-offs between two of them.
import { afterEach, describe, expect, it } from 'vitest';
import { engineRoot } from '../../../src/core/fleet/engine-root.ts';
import { engineKinds } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { EngineRole } from '../../../src/runtime/fleet/engine-dialect.ts';
import { JoinedEngine } from '../../../src/runtime/fleet/joined-engine.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { engineCallPart } from '../../../src/runtime/wire/engine-messages.ts';
import { faultyBus } from '../processes/faulty-bus.ts';
import { admitAll, answerOf, liveRequest } from '../threads/instances.ts';
import { FakeEngine, type FakeEngineOptions, nextToken } from './fake-engine.ts';

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

/** @param seed of the bus, which loses, doubles and delays frames; undefined: it does not */
async function gatewayOf(hub: MemoryHub, name: string, seed?: number): Promise<ClusterGateway> {
  const bus = seed === undefined ? hub.connect() : faultyBus(hub.connect(), seed, faults);
  const agreement = await agreeOn(bus, { modelFingerprint: 'model', root: undefined });
  const gateway = new ClusterGateway({
    ...{ bus, name, incarnation: 1, agreement, queueMax: 64, admission: admitAll, timeoutUs: 60e6, log },
  });
  opened.push(gateway);
  return gateway;
}

/** Joins the engine. Resolves when the gateway can place requests on it. */
async function join(
  hub: MemoryHub,
  name: string,
  { url }: FakeEngine,
  { role, seed }: { readonly role?: EngineRole; readonly seed?: number | undefined } = {},
): Promise<void> {
  const root = engineRoot('model');
  const bus = seed === undefined ? hub.connect() : faultyBus(hub.connect(), seed, faults);
  const agreement = await agreeOn(bus, { modelFingerprint: 'model', root });
  const own = { bus, name, agreement, root, vocabSize: 100_000, log, onReplaced: () => {} };
  const joined = new JoinedEngine({ ...own, engine: { url, role } });
  opened.push(joined);
  await joined.settled;
}

const faults = { lost: 0.1, duplicated: 0.1, delayed: 0.1 };

async function tokensOf(gateway: ClusterGateway, id: string, prompt: readonly number[], count: number) {
  const tokens: number[] = [];
  await endOf(gateway, id, prompt, count, (event) => event.kind === 'tokens' && tokens.push(...event.tokens));
  return tokens;
}

function endOf(
  gateway: ClusterGateway,
  id: string,
  prompt: readonly number[],
  count = 6,
  onEvent: (event: GenerationEvent) => unknown = () => {},
): Promise<GenerationEvent> {
  return new Promise((resolve) => {
    gateway.submit(liveRequest(id, [...prompt], count), (event) => {
      onEvent(event);
      if (event.kind === 'failed' || event.kind === 'finished') resolve(event);
    });
  });
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
  const failed = await endOf(gateway, 'b', prompt);
  expect(failed).toMatchObject({ kind: 'failed', code: 'KV_OVERLOADED', retryAfterMs: 1000 });
  expect(calls().reduce((sum, each) => sum + each)).toBe(5);
});

describe.each(engineKinds)('prefill and decode over %s engines of a cluster', (kind) => {
  /** Engines that join in these roles, over a bus with faults. */
  async function cluster(roles: readonly ('prefill' | 'decode')[], seed?: number) {
    const hub = new MemoryHub();
    const engines = await Promise.all(roles.map((role) => engine({ kind, ...(kind === 'sglang' && { role }) })));
    const gateway = await gatewayOf(hub, 'gateway', seed);
    for (const [i, role] of roles.entries())
      await join(hub, `engine-${i}`, engines[i], { role, seed: seed && seed + i });
    await until(() => gateway.instances().length === roles.length && gateway.readiness().kind === 'ready');
    return { gateway, engines };
  }
  const expected = (prompt: readonly number[], count: number) => {
    const sequence = [...prompt];
    for (let i = 0; i < count; i++) sequence.push(nextToken(sequence));
    return sequence.slice(prompt.length);
  };

  it('gives the decode engine what the prefill engine states, and streams from there', async () => {
    const { gateway, engines } = await cluster(['prefill', 'decode']);
    const prompt = promptOf(3);
    expect(await tokensOf(gateway, 'a', prompt, 8)).toEqual(expected(prompt, 8));
    const [[first], [second]] = engines.map(({ calls }) => calls);
    expect([first.stream, second.stream]).toEqual([false, true]);
    if (kind === 'sglang') expect(second.handOff).toEqual(first.handOff);
    else expect(second.handOff).toMatchObject({ do_remote_prefill: true, remote_request_id: first.id });
    expect([gateway.handOffs, gateway.inFlight.attempts]).toEqual([0, 0]);
    const [placement] = gateway.requestTrace('a')?.placements ?? [];
    expect([placement?.instance, placement?.decodeAt]).toEqual([0, 1]);
  });

  it('refuses what engines do not compute, and a part of a hand-off that is unreadable', async () => {
    const { gateway, engines } = await cluster(['prefill', 'decode']);
    const sampling = { ...liveRequest('a', [], 1).sampling, promptLogprobs: true };
    const end = new Promise<GenerationEvent>((resolve) => {
      gateway.submit(
        { ...liveRequest('a', promptOf(3), 6), sampling },
        (event) => event.kind === 'failed' && resolve(event),
      );
    });
    expect(await end).toMatchObject({ code: 'UNSUPPORTED_REQUEST' });
    expect([gateway.handOffs, engines.flatMap(({ calls }) => calls).length]).toEqual([0, 0]);
    const rendezvous = { host: 'h', bootstrapRoom: 1 };
    expect(() => engineCallPart.parse({ leg: 'decode', rendezvous, receiving: false, params: '{' })).toThrow('no JSON');
  });

  it('completes every request once while messages are lost, doubled and late', async () => {
    const { gateway, engines } = await cluster(['prefill', 'prefill', 'decode', 'decode'], 7);
    const prompts = Array.from({ length: 12 }, (_, i) => promptOf(100 * i + 3));
    const outputs = await Promise.all(prompts.map((prompt, i) => tokensOf(gateway, `r${i}`, prompt, 6)));
    expect(outputs).toEqual(prompts.map((prompt) => expected(prompt, 6)));
    const ids = engines.map(({ calls }) => calls.map(({ id }) => id));
    expect(new Set(ids.flat()).size * 2).toBe(ids.flat().length);
    expect([gateway.handOffs, gateway.inFlight.attempts]).toEqual([0, 0]);
  });

  it('decodes elsewhere when the decode engine dies, and prefills elsewhere when the prefill engine dies', async () => {
    const { gateway, engines } = await cluster(['prefill', 'prefill', 'decode', 'decode']);
    const [, , , spare] = engines;
    const prompt = promptOf(3);
    for (const each of engines) if (each !== spare) each.isHanging = true;
    // The prefill engine never answers, either.
    engines[0].isPrefillHanging = true;
    const output = tokensOf(gateway, 'a', prompt, 6);
    await until(() => engines[0].calls.length === 1);
    await engines[0].kill();
    await until(() => engines[1].calls.length > 0);
    const decoding = () => engines[2].calls.length > 0;
    await until(() => decoding() || spare.calls.length > 0);
    if (decoding()) await engines[2].kill();
    expect(await output).toEqual(expected(prompt, 6));
    expect([gateway.handOffs, gateway.inFlight.attempts]).toEqual([0, 0]);
  });

  it('passes over a prefill engine that refuses for load, and cancels both calls', async () => {
    const { gateway, engines } = await cluster(['prefill', 'decode']);
    const prompt = promptOf(3);
    engines[0].refusals = 1;
    // Of vLLM the decode engine computes alone; that of SGLang waits for blocks, and no other engine prefills.
    engines[1].isHanging = kind === 'sglang';
    const event = await endOf(gateway, 'a', prompt);
    expect(event.kind).toBe(kind === 'vllm' ? 'finished' : 'failed');
    engines[1].isHanging = true;
    engines[0].isPrefillHanging = true;
    gateway.submit(liveRequest('b', prompt, 6), () => {});
    await until(() => engines[0].calls.some(({ id }) => id.includes('b')));
    gateway.cancel('b');
    await until(() => engines[0].closed.some((id) => id.includes('b')));
    expect([gateway.handOffs, gateway.inFlight.attempts]).toEqual([0, 0]);
  });
});
