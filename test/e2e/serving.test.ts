// A real server with clients that disconnect, stall and overload it, and a stop during a stream.
import { request } from 'node:http';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { tinySpec, writeGgufModel } from '../weights/random-model.ts';
import { temporaryFolder } from '../weights/temporary.ts';
import { metric, type RunningServer, startServer, until } from './server.ts';

const model = 'kvasir-tiny-q8_0';
const servers: RunningServer[] = [];
const folder = temporaryFolder();

async function serve(...flags: string[]): Promise<RunningServer> {
  const server = await startServer(flags);
  servers.push(server);
  return server;
}
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.stop()));
});

const story = (more: object = {}) => ({
  model,
  prompt: 'Once upon a time',
  max_tokens: 400,
  ignore_eos: true,
  ...more,
});

function post(server: RunningServer, body: object, signal?: AbortSignal): Promise<Response> {
  return fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    ...(signal && { signal }),
  });
}

async function isIdle(server: RunningServer): Promise<boolean> {
  return (
    (await metric(server, 'kvasir_requests_running')) === 0 && (await metric(server, 'kvasir_kv_pages_used')) === 0
  );
}

describe('serving', () => {
  it('frees all pages when clients disconnect, during a stream or before the response', async () => {
    const server = await serve();
    for (const stream of [true, false]) {
      const leaving = new AbortController();
      const answer = post(server, story({ max_tokens: 8000, stream }), leaving.signal).then((response) =>
        response.text(),
      );
      await until(async () => (await metric(server, 'kvasir_requests_running')) > 0);
      leaving.abort();
      await expect(answer).rejects.toThrow();
      await until(() => isIdle(server));
    }
    expect(await metric(server, 'kvasir_requests_cancelled_total')).toBe(2);
  });

  it('cancels a client that stops reading', async () => {
    const server = await serve();
    const body = JSON.stringify(story({ max_tokens: 7000, stream: true, logprobs: 20, n: 8 }));
    const stalled = request(
      `${server.url}/v1/completions`,
      { method: 'POST', headers: { 'content-type': 'application/json' } },
      (incoming) => incoming.pause(),
    );
    stalled.on('error', () => {});
    stalled.end(body);
    await until(async () => (await metric(server, 'kvasir_requests_cancelled_total')) === 1);
    await until(() => isIdle(server));
    stalled.destroy();
  });

  it('refuses requests over its queue with 429 at once, and serves the rest', async () => {
    const server = await serve('--queue', '4');
    const leaving = new AbortController();
    const running = Array.from({ length: 4 }, () =>
      post(server, story({ stream: true, max_tokens: 8000 }), leaving.signal),
    );
    for (const answer of await Promise.all(running)) expect(answer.status).toBe(200);
    for (const stream of [true, false]) {
      const refused = await post(server, story({ stream }));
      expect(refused.status).toBe(429);
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
      expect(await refused.text()).toContain('4 of at most 4 requests');
    }
    leaving.abort();
    await until(() => isIdle(server));
    expect((await post(server, story({ max_tokens: 5 }))).status).toBe(200);
  });

  it('gives the same tokens alone and in a batch', async () => {
    const server = await serve();
    const tokensOf = async (seed: number) => {
      const answer = await post(server, story({ seed, max_tokens: 40, temperature: 1.2, return_token_ids: true }));
      const { choices } = (await answer.json()) as { choices: { token_ids: number[] }[] };
      return choices[0]?.token_ids;
    };
    const alone = [await tokensOf(1), await tokensOf(2), await tokensOf(3)];
    const together = await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map(tokensOf));
    expect(together.slice(0, 3)).toEqual(alone);
  });

  it('tokenizes a long text in another thread with the same ids', async () => {
    const server = await serve();
    const ids = async (prompt: string) => {
      const answer = await post(server, { model, prompt, max_tokens: 1, return_token_ids: true });
      const { choices } = (await answer.json()) as { choices: { prompt_token_ids: number[] }[] };
      return choices[0]?.prompt_token_ids ?? [];
    };
    const sentence = 'The fox went to the river and found a lantern. ';
    const short = await ids(sentence.repeat(20));
    const long = await ids(sentence.repeat(400));
    expect(long.length).toBeGreaterThan(19 * short.length);
    expect(long.slice(0, short.length - 2)).toEqual(short.slice(0, -2));
  });

  it('serves a model without tokenizer for token ids, and refuses text with that reason', async () => {
    const path = join(folder.path, 'plain.gguf');
    writeGgufModel(path, tinySpec, 'f32');
    const server = await serve('--model', path);
    const answer = await post(server, {
      model: 'plain',
      prompt: [1, 2, 3],
      max_tokens: 4,
      temperature: 0,
      logprobs: 2,
      return_token_ids: true,
    });
    const { choices } = (await answer.json()) as { choices: { token_ids: number[]; logprobs: { tokens: string[] } }[] };
    expect(choices[0]?.token_ids).toHaveLength(4);
    expect(choices[0]?.logprobs.tokens).toEqual(choices[0]?.token_ids.map((id) => `token_id:${id}`));
    const refused = await post(server, { model: 'plain', prompt: 'text' });
    expect(refused.status).toBe(400);
    expect(await refused.text()).toContain('has no tokenizer');
  });

  it('drains on SIGTERM: finishes running requests, then exits with 0', async () => {
    const server = await serve();
    // About two seconds of decoding on any machine: it runs at SIGTERM, and ends long before the drain's grace period.
    const startedMs = performance.now();
    await (await post(server, story({ max_tokens: 100 }))).text();
    const tokenMs = (performance.now() - startedMs) / 100;
    const answer = await post(server, story({ stream: true, max_tokens: Math.ceil(Math.min(3000, 2000 / tokenMs)) }));
    const reader = (answer.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream()).getReader();
    let text = (await reader.read()).value ?? '';
    const exit = server.stop();
    for (let part = await reader.read(); !part.done; part = await reader.read()) text += part.value;
    expect(text).toContain('[DONE]');
    expect(await exit).toBe(0);
    servers.length = 0;
  });
});
