// Several models behind one endpoint: requests select, load and unload them; all other parts of the server are shared.
import { createHash } from 'node:crypto';
import { afterEach, expect, it, vi } from 'vitest';
import { clusterViewSchema, topScreen } from '../../../src/cli/serve/host/instance-rows.ts';
import { type OpenedServing, PooledServing } from '../../../src/cli/serve/model/pooled-serving.ts';
import type { PinListener, PinOrder } from '../../../src/core/protocol/ports.ts';
import { createApp } from '../../../src/gateway/http/app.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { parseKeys } from '../../../src/gateway/keys/keys-file.ts';
import type { InstanceDescription } from '../../../src/runtime/threads/thread-protocol.ts';
import { liveCluster } from '../../runtime/threads/instances.ts';
import { bytesOf } from '../openai/byte-tokenizer.ts';
import { accepted, finished, type Script, ScriptedPort, started, tokens } from '../scripted-port.ts';
import { answering, gatewayOptions, noCluster } from '../world.ts';

const mebibyte = 2 ** 20;
const description: InstanceDescription = {
  ...{
    weights: 'native',
    inputs: 'bf16',
    isa: 'avx512',
    threads: 1,
    weightBytes: 20 * mebibyte,
    kvBytes: 40 * mebibyte,
  },
  ...{ contextTokens: 100, capacityTokens: 1000, role: 'mixed', fetchBytesPerToken: undefined },
};

/** A cluster whose pins stay until they are removed. */
class PinningPort extends ScriptedPort {
  readonly pins = new Map<string, PinListener>();
  closed = false;

  pin({ id, request }: PinOrder, listener: PinListener): void {
    this.pins.set(id, listener);
    listener({ kind: 'pinned', tokens: request.prompt.length, untilUs: 1e6 }, 0);
  }
}

/** Members of the bodies that the tests read. */
interface Body {
  readonly id: string;
  readonly model: string;
  readonly status: string;
  readonly choices: readonly { readonly text: string }[];
  readonly usage: object;
  readonly error: { readonly code: string; readonly param: string; readonly message: string; readonly refusal: object };
  readonly data: readonly { readonly status: { readonly value: string } }[];
  readonly models: readonly object[];
  readonly request_counts: object;
}

const bodyOf = async (response: Response): Promise<Body> => (await response.json()) as Body;

const closing: (() => Promise<void>)[] = [];
afterEach(() => void vi.useRealTimers());
afterEach(() => Promise.all(closing.splice(0).map((close) => close())));

/** Each model has 60 MiB; 100 MiB fit. */
function open(script: Script, queueMax = 64, { keys, held }: { keys?: ApiKeys; held?: Promise<void> } = {}) {
  const base = gatewayOptions(new ScriptedPort(script), keys && { keys });
  const ports: PinningPort[] = [];
  const faults: string[] = [];
  const serving = new PooledServing({
    models: ['a', 'b'].map((id) => ({ card: { id, createdS: 1, contextTokens: 100 }, expectedBytes: 60 * mebibyte })),
    ...{ bytesMax: 100 * mebibyte, roles: ['mixed'], queueMax, log: () => {} },
    open: async (id): Promise<OpenedServing> => {
      await held;
      const fault = faults.pop();
      if (fault !== undefined) throw new Error(fault);
      const port = new PinningPort(script);
      ports.push(port);
      const parts = { ready: async () => [description], ended: new Promise<void>(() => {}) };
      const unpin = (): void => {};
      const cluster = Object.assign(port, { ...noCluster, pin: port.pin, unpin, ...parts });
      const close = async (): Promise<void> => {
        port.closed = true;
      };
      return { model: { ...base.model, id }, encode: base.encode, cluster, close };
    },
  });
  closing.push(() => serving.close());
  const { clusters } = serving;
  const app = createApp({ ...base, models: serving, port: clusters, cluster: clusters });
  const post = (path: string, body: object, signal?: AbortSignal) =>
    app.request(path, { method: 'POST', body: JSON.stringify(body), ...(signal && { signal }) });
  const get = async (path: string) => bodyOf(await app.request(path));
  const complete = (model: unknown, more: object = {}) => post('/v1/completions', { model, prompt: 'hi', ...more });
  const states = async (): Promise<string[]> => (await get('/v1/models')).data.map(({ status }) => status.value);
  return { serving, app, post, get, complete, states, ports, faults };
}

it('lists all models, loads the one that a request names, and unloads it for another', async () => {
  const { complete, states, get, ports } = open(answering('yes'));
  expect(await states()).toEqual(['unloaded', 'unloaded']);
  expect(await get('/v1/models/b')).toMatchObject({ id: 'b', max_model_len: 100 });
  const first = await bodyOf(await complete('a'));
  expect([first.model, first.choices[0].text]).toEqual(['a', 'yes']);
  expect(await states()).toEqual(['loaded', 'unloaded']);
  expect((await bodyOf(await complete('b'))).model).toBe('b');
  expect(await states()).toEqual(['unloaded', 'loaded']);
  expect(ports.map(({ closed }) => closed)).toEqual([true, false]);
});

it('refuses a request without a model, and one with an unknown model', async () => {
  const { complete, states, get } = open(answering('yes'));
  for (const [model, status, code] of [
    [undefined, 400, 'invalid_value'],
    [7, 400, 'invalid_value'],
    ['c', 404, 'model_not_found'],
  ] as const) {
    const response = await complete(model);
    const { error } = await bodyOf(response);
    expect([response.status, error.code, error.param]).toEqual([status, code, 'model']);
  }
  const unknown = await get('/v1/models/c');
  expect(unknown.error.message).toBe("Cannot find model 'c': this server serves 'a', 'b'");
  expect(await states()).toEqual(['unloaded', 'unloaded']);
});

it('keeps a model until its stream has ended, and refuses another with figures meanwhile', async () => {
  const endless: Script = () => [
    accepted,
    started(0),
    ...Array.from({ length: 50 }, () => tokens(bytesOf('x'))),
    finished('stop'),
  ];
  const { complete, states, ports } = open(endless);
  const streaming = await complete('a', { stream: true });
  const refused = await complete('b');
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '1']);
  const { error } = await bodyOf(refused);
  expect(error.message).toBe(
    "Cannot load model 'b': it needs 60 MiB, and 60 MiB of 100 MiB are in use by 'a', which has requests",
  );
  expect(error.refusal).toMatchObject({ needed_bytes: 60 * mebibyte, held_bytes: 60 * mebibyte });
  expect(await streaming.text()).toContain('[DONE]');
  expect((await complete('b')).status).toBe(200);
  expect([await states(), ports[0]?.closed]).toEqual([['unloaded', 'loaded'], true]);
});

it('reports a failed load, and loads again after a back-off', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  const { complete, faults, get } = open(answering('yes'));
  faults.push('the file is damaged');
  const failed = await complete('a');
  expect([failed.status, (await bodyOf(failed)).error]).toMatchObject([
    503,
    { code: 'model_load_failed', message: "Cannot load model 'a': the file is damaged" },
  ]);
  const early = await complete('a');
  expect([early.status, early.headers.get('retry-after')]).toEqual([503, '1']);
  vi.advanceTimersByTime(1000);
  expect((await complete('a')).status).toBe(200);
  const { models } = await get('/api/cluster');
  expect(models[0]).toMatchObject({ id: 'a', state: 'loaded', loads: 1, failures: 1, memory_bytes: 60 * mebibyte });
});

it('loads no model for a request with a bad field, and counts those that wait toward the limits of their keys', async () => {
  const key = 'k'.repeat(32);
  const sha256 = createHash('sha256').update(key).digest('hex');
  const limits = '{ concurrent_requests: 1 }';
  const keys = new ApiKeys(
    { users: [], admins: [] },
    parseKeys(`keys: [{ name: team, sha256: ${sha256}, limits: ${limits} }]`),
  );
  let load: () => void = () => {};
  const held = new Promise<void>((resolve) => {
    load = resolve;
  });
  const { app, serving } = open(answering('yes'), 64, { keys, held });
  const complete = async (more: object = {}) => {
    const body = JSON.stringify({ model: 'a', prompt: 'hi', ...more });
    return app.request('/v1/completions', { method: 'POST', body, headers: { authorization: `Bearer ${key}` } });
  };
  const state = () => serving.figures()[0]?.loads?.state;
  const bad = await bodyOf(await complete({ max_tokens: 'many' }));
  expect([bad.error.param, state()]).toEqual(['max_tokens', 'unloaded']);
  const waiting = complete();
  await vi.waitFor(() => expect(state()).toBe('loading'));
  const second = await complete();
  expect([second.status, (await bodyOf(second)).error.param]).toEqual([429, 'concurrent_requests']);
  load();
  expect((await waiting).status).toBe(200);
  expect((await complete()).status).toBe(200);
});

it('tokenizes with the first model where a request names none', async () => {
  const { post, states } = open(answering('yes'));
  expect(await (await post('/tokenize', { prompt: 'hi' })).json()).toMatchObject({ count: 2 });
  expect(await (await post('/detokenize', { tokens: bytesOf('hi') })).json()).toEqual({ prompt: 'hi' });
  expect(await states()).toEqual(['loaded', 'unloaded']);
});

it('sums figures over models, with counters of unloaded ones, and labels those of engines by model', async () => {
  const { complete, get, app } = open(answering('yes'));
  await complete('a');
  await complete('b');
  const text = await (await app.request('/metrics')).text();
  // 9 tokens by each instance, one of which is unloaded.
  expect(text).toContain('kvasir_generated_tokens_total 18');
  expect(text).toContain('kvasir_kv_pages 100');
  expect(text).toContain('vllm:num_requests_running{model_name="b",engine="0"} 0');
  expect(text).toContain('kvasir_model_loaded{model="a"} 0');
  expect(text).toContain('kvasir_model_unloads_total{model="a"} 1');
  expect(text).toContain('kvasir_instance_up{worker="b/0"} 1');
  expect(text).not.toContain('worker="a/0"');
  expect(await get('/health')).toMatchObject({ instances: { total: 1, ready: 1 } });
  const view = clusterViewSchema.parse(await get('/api/cluster'));
  expect(topScreen(view, undefined, 100)[0]).toBe('a, b: ready, 1 of 1 instances serve');
});

it('counts the requests of all models for one queue', async () => {
  const never: Script = () => [accepted, started(0)];
  const { complete, serving } = open(never, 1);
  await complete('a', { stream: true });
  expect(serving.clusters.overload(0)).toMatchObject({ cause: { reason: 'queue', accepted: 1, queueMax: 1 } });
  expect((await complete('a')).status).toBe(429);
});

it('ends the contexts of a model that is unloaded, and keeps those of others', async () => {
  const { complete, post, get } = open(answering('yes'));
  expect((await post('/v1/contexts', { model: 'a', prompt: 'a prefix' })).status).toBe(201);
  expect((await get('/v1/contexts')).data).toMatchObject([{ model: 'a', prompt_tokens: 8 }]);
  await complete('b');
  expect((await get('/v1/contexts')).data).toEqual([]);
});

it('runs the requests of a batch with the models that they name', async () => {
  const { app, post, get } = open(answering('yes'));
  const line = (model: string) => ({
    ...{ custom_id: model, method: 'POST', url: '/v1/completions' },
    body: { model, prompt: 'hi', max_tokens: 3 },
  });
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new File([['a', 'b', 'c'].map((model) => JSON.stringify(line(model))).join('\n')], 'in.jsonl'));
  const file = await bodyOf(await app.request('/v1/files', { method: 'POST', body: form }));
  const request = { input_file_id: file.id, endpoint: '/v1/completions', completion_window: '24h' };
  const batch = await bodyOf(await post('/v1/batches', request));
  const ended = async () => {
    for (;;) {
      const now = await get(`/v1/batches/${batch.id}`);
      if (now.status === 'completed') return now;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  };
  // The other model loads when the first one is idle; the third is unknown.
  expect((await ended()).request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
});

it('ends the threads of a real model when it unloads', async () => {
  const base = gatewayOptions(new ScriptedPort(() => []));
  const clusters: ReturnType<typeof liveCluster>[] = [];
  const serving = new PooledServing({
    models: ['a', 'b'].map((id) => ({ card: { id, createdS: 1, contextTokens: 512 }, expectedBytes: 1 })),
    ...{ bytesMax: mebibyte, roles: ['mixed'], queueMax: 8, log: () => {} },
    open: async (id) => {
      const cluster = liveCluster([{ kvBytes: 4 * mebibyte }]);
      clusters.push(cluster);
      return {
        model: { ...base.model, id, contextTokens: 512 },
        encode: base.encode,
        cluster,
        close: () => cluster.close(),
      };
    },
  });
  closing.push(() => serving.close());
  const app = createApp({ ...base, models: serving, port: serving.clusters, cluster: serving.clusters });
  for (const model of ['a', 'b']) {
    const body = JSON.stringify({ model, prompt: [1, 2, 3], max_tokens: 2, ignore_eos: true });
    const response = await app.request('/v1/completions', { method: 'POST', body });
    expect((await bodyOf(response)).usage).toMatchObject({ completion_tokens: 2 });
  }
  expect(clusters.map((cluster) => cluster.inFlight.sinks)).toEqual([0, 0]);
  await clusters[0]?.ended;
  const [first, second] = serving.figures();
  expect([first?.loads, second?.loads]).toMatchObject([{ state: 'unloaded', unloads: 1 }, { state: 'loaded' }]);
  expect(first?.snapshot.generatedTokens).toBe(2);
});
