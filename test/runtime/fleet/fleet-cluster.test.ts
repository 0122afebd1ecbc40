// A conductor over fake engines of both kinds: answers, placement by the engines' own blocks, and failures.
import { afterEach, describe, expect, it } from 'vitest';
import { engineKinds } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationEvent, GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { FleetCluster, type FleetClusterOptions } from '../../../src/runtime/fleet/fleet-cluster.ts';
import { request } from '../../core/instance-world.ts';
import { admitAll } from '../threads/instances.ts';
import { FakeEngine, type FakeEngineOptions, nextToken } from './fake-engine.ts';

const opened: { close(): Promise<void> }[] = [];
const logged: string[] = [];

afterEach(async () => {
  await Promise.all(opened.splice(0).map((each) => each.close()));
  logged.length = 0;
});

async function fleetOf(
  engines: readonly FakeEngine[],
  options: Partial<FleetClusterOptions> = {},
): Promise<FleetCluster> {
  const cluster = new FleetCluster({
    ...{ engines: engines.map(({ url }) => ({ url })), admission: admitAll, queueMax: 64 },
    ...{ log: (line) => void logged.push(line), ...options },
  });
  opened.push(cluster);
  await cluster.settled();
  await until(() => engines.every(({ hasSubscriber }) => hasSubscriber));
  return cluster;
}

async function engine(options?: FakeEngineOptions): Promise<FakeEngine> {
  const started = await FakeEngine.start(options);
  opened.push({ close: () => started.kill() });
  return started;
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

/** Prompt tokens of a conversation: those of equal numbers begin alike. */
function promptOf(conversation: number, length: number): number[] {
  return Array.from({ length }, (_, i) => conversation * 5000 + i);
}

/** Output of a request, its cached tokens, and its end. */
function run(
  cluster: FleetCluster,
  id: string,
  prompt: readonly number[],
  own: Partial<GenerationRequest> = {},
): Promise<{ tokens: number[]; cached: number; end: GenerationEvent }> {
  return new Promise((resolve) => {
    const tokens: number[] = [];
    let cached = 0;
    cluster.submit({ ...request(id, [...prompt]), maxTokens: 8, ...own }, (event) => {
      if (event.kind === 'tokens') tokens.push(...event.tokens);
      if (event.kind === 'started') cached = event.cachedTokens;
      if (event.kind === 'finished' || event.kind === 'failed') resolve({ tokens, cached, end: event });
    });
  });
}

function expectedTokens(prompt: readonly number[], count: number): number[] {
  const sequence = [...prompt];
  for (let i = 0; i < count; i++) sequence.push(nextToken(sequence));
  return sequence.slice(prompt.length);
}

/** Blocks of the index, by instance. */
function cachedAt(cluster: FleetCluster): readonly number[] {
  return cluster.instances().map(({ pages }) => pages.cached);
}

describe.each(engineKinds)('FleetCluster over %s', (kind) => {
  it('streams the tokens of an engine, and ends with its reason', async () => {
    const cluster = await fleetOf([await engine({ kind })]);
    const prompt = promptOf(1, 50);
    const all = expectedTokens(prompt, 8);
    expect(await run(cluster, 'a', prompt)).toMatchObject({ tokens: all, end: { kind: 'finished', reason: 'length' } });
    const stopped = await run(cluster, 'b', prompt, { stopTokenIds: [all[3]] });
    expect(stopped).toMatchObject({ tokens: all.slice(0, 4), end: { kind: 'finished', reason: 'stop' } });
    expect(cluster.instances()).toMatchObject([{ ready: true, generatedTokens: 12 }]);
    expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0, handOffs: 0 });
  });

  it('places a prompt on the engine whose own blocks it begins with', async () => {
    const engines = [
      await engine({ kind }),
      await engine({ kind, blockTokens: 32 }),
      await engine({ kind, blockTokens: 128 }),
    ];
    const cluster = await fleetOf(engines);
    const conversations = [1, 2, 3];
    await Promise.all(conversations.map((each) => run(cluster, `first-${each}`, promptOf(each, 300))));
    expect(engines.map(({ calls }) => calls.length)).toEqual([1, 1, 1]);
    await until(() => cachedAt(cluster).every((blocks, i) => blocks === engines[i].blocks));
    for (const conversation of conversations) {
      const before = engines.map(({ calls }) => calls.length);
      const again = await run(cluster, `again-${conversation}`, promptOf(conversation, 400));
      const chosen = engines.findIndex(({ calls }, i) => calls.length > before[i]);
      expect(engines[chosen].calls.map(({ prompt }) => prompt[0])).toContain(5000 * conversation);
      expect(again.cached).toBeGreaterThanOrEqual(256);
    }
  });

  it('continues a broken stream on another engine after the tokens that the client has', async () => {
    const engines = [await engine({ kind }), await engine({ kind })];
    const cluster = await fleetOf(engines);
    for (const each of engines) each.breakAfter = 3;
    const prompt = promptOf(1, 40);
    expect((await run(cluster, 'a', prompt)).tokens).toEqual(expectedTokens(prompt, 8));
    const calls = engines.flatMap((each) => each.calls);
    expect(calls.map((call) => [call.prompt.length, call.maxTokens])).toContainEqual([43, 5]);
  });

  it('continues the requests of a killed engine elsewhere', async () => {
    const engines = [await engine({ kind }), await engine({ kind })];
    const cluster = await fleetOf(engines);
    for (const each of engines) each.isHanging = true;
    const prompts = [1, 2, 3, 4].map((conversation) => promptOf(conversation, 40));
    const runs = prompts.map((prompt, i) => run(cluster, `r${i}`, prompt));
    await until(() => engines.every(({ calls }) => calls.length === 2));
    engines[1].isHanging = false;
    await engines[0].kill();
    const moved = engines[0].calls.map(({ id }) => Number(id.slice(1)));
    for (const i of moved) expect((await runs[i]).tokens).toEqual(expectedTokens(prompts[i], 8));
    expect(cluster.serving).toBe(1);
    expect(logged.join('\n')).toContain('is down');
  });

  it('closes the stream of a cancelled request', async () => {
    const only = await engine({ kind });
    const cluster = await fleetOf([only]);
    only.isHanging = true;
    void run(cluster, 'a', promptOf(1, 40));
    await until(() => only.calls.length === 1);
    cluster.cancel('a');
    await until(() => only.closed.includes('a'));
    expect(cluster.instances()).toMatchObject([{ running: 0 }]);
  });

  it('prefills on one engine and decodes on another, which continues elsewhere when it dies', async () => {
    const roles = ['prefill', 'decode', 'decode'] as const;
    const engines = await Promise.all(roles.map((role) => engine({ kind, role })));
    const cluster = await fleetOf(engines, { engines: engines.map(({ url }, i) => ({ url, role: roles[i] })) });
    const prompt = promptOf(1, 100);
    for (const each of engines) each.isHanging = true;
    const running = run(cluster, 'a', prompt);
    await until(() => engines.slice(1).some(({ calls }) => calls.length === 1));
    const decoder = engines[1].calls.length === 1 ? 1 : 2;
    const [from, to] = [engines[0].calls[0], engines[decoder].calls[0]];
    expect([from.stream, to.stream, to.maxTokens]).toEqual([false, true, 8]);
    expect([from.handOff, to.handOff]).toMatchObject(
      kind === 'vllm'
        ? [{ do_remote_decode: true }, { do_remote_prefill: true, remote_request_id: 'a', remote_block_ids: [1, 2] }]
        : [to.handOff, { host: '127.0.0.1', port: 8997, room: expect.any(Number) }],
    );
    engines[3 - decoder].isHanging = false;
    await engines[decoder].kill();
    expect(await running).toMatchObject({ tokens: expectedTokens(prompt, 8), cached: 0 });
    expect(cluster.roles()).toEqual(roles);
    expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0, handOffs: 0 });
  });

  it('prefills elsewhere when the prefill engine dies before it answers', async () => {
    const roles = ['prefill', 'prefill', 'decode'] as const;
    const engines = await Promise.all(roles.map((role) => engine({ kind, role })));
    const cluster = await fleetOf(engines, { engines: engines.map(({ url }, i) => ({ url, role: roles[i] })) });
    for (const each of engines) each.isPrefillHanging = true;
    engines[2].isHanging = true;
    const prompt = promptOf(1, 100);
    const running = run(cluster, 'a', prompt);
    await until(() => engines.slice(0, 2).some(({ calls }) => calls.length === 1));
    expect(cluster.inFlight.handOffs).toBe(1);
    const first = engines[0].calls.length === 1 ? 0 : 1;
    engines[1 - first].isPrefillHanging = false;
    engines[2].isHanging = false;
    await engines[first].kill();
    expect((await running).tokens).toEqual(expectedTokens(prompt, 8));
    expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0, handOffs: 0 });
  });

  it('keeps the prompts of two salts apart', async () => {
    const engines = [await engine({ kind })];
    const cluster = await fleetOf(engines);
    const prompt = promptOf(1, 100);
    for (const [id, salt, cached] of [
      ['a', 'one', 0],
      ['b', 'two', 0],
      ['c', 'one', 96],
    ] as const) {
      expect((await run(cluster, id, prompt, { salt })).cached).toBe(cached);
      await until(() => cachedAt(cluster)[0] === engines[0].blocks);
    }
  });
});

describe('FleetCluster', () => {
  it('retries a request elsewhere that one engine refuses for load, and fails one that all refuse', async () => {
    const engines = [await engine(), await engine({ kind: 'sglang' })];
    const cluster = await fleetOf(engines);
    const prompt = promptOf(1, 40);
    for (const id of ['a', 'b', 'c']) {
      engines[0].refusals = 1;
      expect((await run(cluster, id, prompt)).tokens).toEqual(expectedTokens(prompt, 8));
    }
    const callsOf = (id: string): number[] =>
      engines.map(({ calls }) => calls.filter((call) => call.id.startsWith(id)).length);
    const withStatus = async (status: number, own?: Partial<GenerationRequest>): Promise<GenerationEvent> => {
      for (const each of engines) each.status = status;
      return (await run(cluster, `status-${status}`, prompt, own)).end;
    };
    const overloaded = { kind: 'failed', code: 'KV_OVERLOADED', retryAfterMs: expect.any(Number) };
    expect(await withStatus(503)).toMatchObject(overloaded);
    expect(await withStatus(429)).toMatchObject(overloaded);
    // No engine gets a request again that it has refused.
    expect([callsOf('status-503'), callsOf('status-429')]).toEqual([
      [1, 1],
      [1, 1],
    ]);
    expect(await withStatus(500)).toMatchObject({ kind: 'failed', code: 'ENGINE_FAILED' });
    const refused = { kind: 'failed', code: 'UNSUPPORTED_REQUEST' };
    expect(await withStatus(400)).toMatchObject({
      ...refused,
      message: expect.stringContaining('status 400 on demand'),
    });
    expect(await withStatus(200, { maxTokens: 0 })).toMatchObject(refused);
  });

  it('prefills elsewhere when a prefill engine refuses, and passes over a decode engine that refuses', async () => {
    const roles = ['prefill', 'prefill', 'decode', 'decode'] as const;
    const engines = await Promise.all(roles.map((role) => engine({ kind: 'sglang', role })));
    const cluster = await fleetOf(engines);
    const prompt = promptOf(1, 100);
    for (const refusing of [engines[0], engines[2]]) {
      refusing.status = 503;
      for (const id of ['a', 'b', 'c'])
        expect((await run(cluster, id, prompt)).tokens).toEqual(expectedTokens(prompt, 8));
      refusing.status = 200;
      const requests = refusing.calls.map(({ id }) => id[0]);
      expect(new Set(requests).size).toBe(requests.length);
      for (const each of engines) each.calls.length = 0;
    }
    expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0, handOffs: 0 });
  });

  it('hands off over MooncakeConnector, and decodes alone where the bootstrap server fails', async () => {
    const engines = await Promise.all([engine(), engine()]);
    const [prefill, decode] = engines;
    const prompt = promptOf(1, 100);
    const handOffsBy = async (bootstrap: string): Promise<unknown[]> => {
      const own = [
        { url: prefill.url, role: 'prefill', bootstrap },
        { url: decode.url, role: 'decode' },
      ] as const;
      const cluster = await fleetOf(engines, { engines: own });
      for (const each of engines) each.calls.length = 0;
      for (const id of ['a', 'b']) expect((await run(cluster, id, prompt)).tokens).toEqual(expectedTokens(prompt, 8));
      expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0, handOffs: 0 });
      return engines.map(({ calls }) => calls.map(({ handOff }) => handOff));
    };
    const transfer = { transfer_id: expect.stringMatching(/^kvasir-\d+$/) };
    const remote = { remote_bootstrap_addr: prefill.url, remote_engine_id: 'fake-engine' };
    const [[sent], [taken]] = (await handOffsBy(prefill.url)) as [Record<string, string>[], Record<string, string>[]];
    expect(sent).toEqual({ do_remote_decode: true, do_remote_prefill: false, ...transfer });
    expect(taken).toEqual({
      do_remote_decode: false,
      do_remote_prefill: true,
      ...remote,
      transfer_id: sent.transfer_id,
    });
    // An address without a bootstrap server.
    expect(await handOffsBy(`${prefill.url}/none`)).toEqual([[], [undefined, undefined]]);
    expect(logged.filter((line) => line.includes('its bootstrap server fails'))).toEqual([
      expect.stringMatching(/^Prompts of .*: \/query answers 404$/),
    ]);
  });

  it.each(engineKinds)(
    'passes on the text that %s decodes, also over a broken stream, where no tokenizer is here',
    async (kind) => {
      const engines = await Promise.all([engine({ kind }), engine({ kind })]);
      const cluster = await fleetOf(engines);
      for (const each of engines) each.breakAfter = 3;
      const prompt = promptOf(1, 40);
      const texts: (string | undefined)[] = [];
      await new Promise<void>((resolve) => {
        const engineText = { ignoresEos: false, keepsSpecial: false };
        cluster.submit({ ...request('a', prompt), maxTokens: 8, engineText }, (event) => {
          if (event.kind === 'tokens') texts.push(event.text);
          if (event.kind === 'finished') resolve();
        });
      });
      expect(texts.join('')).toBe(
        expectedTokens(prompt, 8)
          .map((token) => ` ${token}`)
          .join(''),
      );
      const calls = engines.flatMap((each) => each.calls);
      expect([calls.length > 1, calls.some(({ ignoresEos }) => ignoresEos)]).toEqual([true, false]);
      await run(cluster, 'b', prompt);
      expect(engines.flatMap((each) => each.calls).at(-1)?.ignoresEos).toBe(true);
    },
  );

  it('passes the priority of a request on in the order of the engine, and none to an engine that takes none', async () => {
    const sent = async (options: FakeEngineOptions, priorityScheduling?: boolean): Promise<unknown> => {
      const only = await engine(options);
      const cluster = await fleetOf([only], { engines: [{ url: only.url, priorityScheduling }] });
      await run(cluster, 'a', promptOf(1, 40), { priority: 7 });
      return only.calls[0].priority;
    };
    expect(await sent({ kind: 'sglang', priorities: 'largest-first' })).toBe(7);
    expect(await sent({ kind: 'sglang', priorities: 'smallest-first' })).toBe(-7);
    expect(await sent({ kind: 'sglang' })).toBeUndefined();
    expect(await sent({})).toBeUndefined();
    expect(await sent({}, true)).toBe(-7);
    expect(await sent({ kind: 'sglang', priorities: 'largest-first' }, false)).toBeUndefined();
  });

  it('computes a prompt on its decode engine alone when the prefill engine refuses it', async () => {
    const roles = ['prefill', 'decode'] as const;
    const engines = [await engine(), await engine()];
    const cluster = await fleetOf(engines, { engines: engines.map(({ url }, i) => ({ url, role: roles[i] })) });
    engines[0].status = 503;
    const prompt = promptOf(1, 100);
    expect((await run(cluster, 'a', prompt)).tokens).toEqual(expectedTokens(prompt, 8));
    expect(engines.map(({ calls }) => calls.map(({ handOff }) => handOff !== undefined))).toEqual([[true], [false]]);
    cluster.cancel('unknown');
  });

  it('serves without KV events where their address is unusable', async () => {
    const only = await engine();
    const kvEvents = { endpoint: 'tcp://127.0.0.1:65536', topic: '' };
    const cluster = new FleetCluster({
      ...{ engines: [{ url: only.url, kvEvents }], admission: admitAll, queueMax: 64 },
      log: (line) => void logged.push(line),
    });
    opened.push(cluster);
    await cluster.settled();
    const prompt = promptOf(1, 40);
    expect((await run(cluster, 'a', prompt)).tokens).toEqual(expectedTokens(prompt, 8));
    expect(logged.join('\n')).toContain('the port must be 1 to 65535');
    expect(logged.join('\n')).toContain('(vllm, without KV events) has joined: 1 instance serves');
  });

  it('refuses requests above its limit with a time to retry, before they reach an engine', async () => {
    const only = await engine();
    const cluster = await fleetOf([only], { queueMax: 2 });
    only.isHanging = true;
    void run(cluster, 'a', promptOf(1, 40));
    void run(cluster, 'b', promptOf(2, 40));
    const { end } = await run(cluster, 'c', promptOf(3, 40));
    expect(end).toMatchObject({ kind: 'failed', code: 'KV_OVERLOADED', retryAfterMs: expect.any(Number) });
    await until(() => only.calls.length === 2);
    expect(only.calls.map(({ id }) => id)).not.toContain('c');
  });

  it('closes a gap of KV events by a replay, and learns the blocks anew where the engine has forgotten them', async () => {
    const only = await engine();
    const cluster = await fleetOf([only]);
    await run(cluster, 'a', promptOf(1, 64));
    await until(() => only.replays === 1 && cachedAt(cluster)[0] === only.blocks);
    only.dropBatches = 1;
    await run(cluster, 'b', promptOf(2, 64));
    await run(cluster, 'c', promptOf(3, 64));
    await until(() => cachedAt(cluster)[0] === only.blocks);
    expect(only.replays).toBe(2);
    only.kept = 1;
    only.dropBatches = 1;
    await run(cluster, 'd', promptOf(4, 64), { maxTokens: 1 });
    only.evict(1);
    await run(cluster, 'e', promptOf(5, 64), { maxTokens: 1 });
    await until(() => cachedAt(cluster)[0] === 4);
    expect(logged.join('\n')).toContain('its blocks are learned anew');
  });

  it('follows evictions and resets of an engine that publishes positional events, and its reconnections', async () => {
    const only = await engine({ positional: true });
    const cluster = await fleetOf([only]);
    await run(cluster, 'a', promptOf(1, 64));
    only.evict(1);
    await until(() => cachedAt(cluster)[0] === only.blocks);
    only.clear();
    await until(() => cachedAt(cluster)[0] === 0);
    only.cutSubscribers();
    await run(cluster, 'b', promptOf(2, 64));
    await until(() => cachedAt(cluster)[0] === only.blocks);
  });

  it('learns the blocks of an engine that has run before, and admits engines of its model alone', async () => {
    const [first, other] = [await engine(), await engine({ model: 'another' })];
    const earlier = await fleetOf([first]);
    await run(earlier, 'a', promptOf(1, 64));
    const cluster = await fleetOf([first], { engines: [{ url: first.url }, { url: other.url }], model: 'fake' });
    await until(() => cachedAt(cluster)[0] === first.blocks);
    expect(cluster.serving).toBe(1);
    expect(logged.join('\n')).toContain('it serves another, and the fleet serves fake');
    expect(cluster.readiness()).toEqual({ kind: 'ready' });
  });
});
