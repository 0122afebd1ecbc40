// One rank of an external engine: what counts as progress, streams that stall, and answers with too much or little.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import type { GenerationEvent, GenerationRequest } from '../../../src/core/protocol/ports.ts';
import type { EngineDialect } from '../../../src/runtime/fleet/engine-dialect.ts';
import { EngineHttp } from '../../../src/runtime/fleet/engine-http.ts';
import { ExternalInstance } from '../../../src/runtime/fleet/external-instance.ts';
import { sglangDialect } from '../../../src/runtime/fleet/sglang-dialect.ts';
import { vllmDialect } from '../../../src/runtime/fleet/vllm-dialect.ts';
import { nowUs } from '../../../src/runtime/threads/alarm.ts';
import { request } from '../../core/instance-world.ts';
import { FakeEngine } from './fake-engine.ts';

const description = {
  models: ['fake'],
  contextTokens: undefined,
  capacityTokens: undefined,
  blockTokens: undefined,
  sources: [undefined],
  priorityOrder: 'smallest-first' as const,
  takesPriorities: false,
};
const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };

it('counts prefills as progress, and releases streams that have started and stalled', async () => {
  const engine = await FakeEngine.start();
  const http = new EngineHttp(engine.url, undefined);
  const released: (readonly [string, string])[] = [];
  let onTokens = (): void => {};
  const listener = {
    onEvents: (events: readonly (readonly [string, GenerationEvent])[]) => {
      if (events.some(([, { kind }]) => kind === 'tokens')) onTokens();
    },
    onKvEvents: () => {},
    onBroken: () => {},
    onReleased: (id: string, why: string) => void released.push([id, why]),
    log: () => {},
  };
  const instance = new ExternalInstance({
    ...{ http, dialect: vllmDialect, description, model: 'fake', rank: 0, listener },
    blocks: { root, hashKey: Uint32Array.of(1, 2, 3, 4), incarnation: 1 },
  });
  engine.isHanging = true;
  instance.submit({ ...request('hanging', [1, 2]), maxTokens: 4 }, 0);
  const beforeUs = instance.stalledSinceUs ?? Number.POSITIVE_INFINITY;
  const fields = vllmDialect.handOff.prefill({ host: '', port: undefined, bootstrapRoom: 0 });
  const body = await new Promise<string | undefined>((resolve) =>
    instance.prefill(request('prefill', [1, 2, 3]), 0, fields, (answer) => resolve(answer?.body)),
  );
  expect(body).toContain('kv_transfer_params');
  expect(instance.stalledSinceUs).toBeGreaterThan(beforeUs);
  engine.isHanging = false;
  engine.stallAfter = 1;
  const started = new Promise<void>((resolve) => {
    onTokens = resolve;
  });
  instance.submit({ ...request('stalled', [4, 5]), maxTokens: 4 }, 0);
  await started;
  instance.releaseStalled(nowUs());
  expect(released).toEqual([]);
  instance.releaseStalled(nowUs() + 121e6);
  expect(released).toEqual([['stalled', 'no token has arrived for 120 s']]);
  instance.close();
  http.close();
  await engine.kill();
});

/** The events of a request whose engine streams these chunks. */
async function eventsOf(dialect: EngineDialect, chunks: readonly object[], asked: GenerationRequest) {
  const server = createServer((_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const chunk of chunks) response.write(`data: ${JSON.stringify(chunk)}\n\n`);
    response.end('data: [DONE]\n\n');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const http = new EngineHttp(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, undefined);
  const events: GenerationEvent[] = [];
  await new Promise<void>((resolve, reject) => {
    const listener = {
      onEvents: (arrived: readonly (readonly [string, GenerationEvent])[]) => {
        events.push(...arrived.map(([, event]) => event));
        if (events.at(-1)?.kind === 'finished') resolve();
      },
      onKvEvents: () => {},
      onBroken: reject,
      onReleased: (_: string, why: string) => reject(new Error(why)),
      log: () => {},
    };
    const instance = new ExternalInstance({
      ...{ http, dialect, description, model: 'fake', rank: 0, listener },
      blocks: { root, hashKey: Uint32Array.of(1, 2, 3, 4), incarnation: 1 },
    });
    instance.submit(asked, 0);
  });
  http.close();
  server.close();
  return events;
}

it('leaves out what an engine sends beyond the tokens of a request', async () => {
  const chunk = { choices: [{ text: '', token_ids: [7, 8], finish_reason: null }] };
  const events = await eventsOf(vllmDialect, [chunk, chunk, chunk], { ...request('long', [1]), maxTokens: 3 });
  const tokens = events.flatMap((event) => (event.kind === 'tokens' ? [...event.tokens] : []));
  expect([tokens, events.at(-1)]).toEqual([[7, 8, 7], { kind: 'finished', reason: 'length' }]);
  const text = { choices: [{ text: 'ab', token_ids: [7, 8], finish_reason: null }] };
  const engineText = { ignoresEos: false, keepsSpecial: false };
  const whole = await eventsOf(vllmDialect, [text, text], { ...request('text', [1]), maxTokens: 2, engineText });
  expect(whole.flatMap((event) => (event.kind === 'tokens' ? [event.text] : []))).toEqual(['ab']);
});

it('passes on a text that arrives behind its tokens', async () => {
  const chunks = [
    { text: 'a', output_ids: [7], meta_info: { completion_tokens: 1, finish_reason: null } },
    { text: 'ab', output_ids: [7], meta_info: { completion_tokens: 1, finish_reason: { type: 'stop' } } },
  ];
  const engineText = { ignoresEos: false, keepsSpecial: false };
  const events = await eventsOf(sglangDialect, chunks, { ...request('late', [1]), maxTokens: 3, engineText });
  const texts = events.flatMap((event) => (event.kind === 'tokens' ? [event.text] : []));
  expect([texts, events.at(-1)]).toEqual([['a', 'b'], { kind: 'finished', reason: 'stop' }]);
});

it('writes prompts of any length with the tokens so far', () => {
  const target = { model: 'fake', rank: undefined, priority: undefined };
  const promptOf = (prompt: number[], resumed?: number[]): unknown => {
    const continued = resumed && { tokens: Int32Array.from(resumed), scored: 0 };
    const { body } = vllmDialect.encode({ ...request('long', prompt), resumed: continued }, target);
    return JSON.parse(body).prompt;
  };
  const ids = Array.from({ length: 10_000 }, (_, i) => (i % 7 === 0 ? 2 ** 31 - 1 - i : i));
  expect([promptOf([0]), promptOf([10, 9], []), promptOf([1], [100, 0])]).toEqual([[0], [10, 9], [1, 100, 0]]);
  expect(promptOf(ids, ids)).toEqual([...ids, ...ids]);
});
