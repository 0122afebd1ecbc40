// Contexts over HTTP: a pinned prefix stays cached under load until its time expires or it is deleted.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningServer, startServer, until } from './server.ts';

let server: RunningServer;
beforeAll(async () => {
  // Few pages, a quarter of them for contexts: unpinned blocks are evicted soon.
  const memory = ['--context', '512', '--kv-memory', '3m', '--pin-memory', '0.25'];
  server = await startServer(['--threads', '1', '--api-key', 'one', 'other', ...memory]);
});
afterAll(() => server.stop());

const model = 'kvasir-tiny-q8_0';
const promptOf = (kind: number, length: number) => Array.from({ length }, (_, i) => 5 + ((kind * 37 + i * 11) % 400));

async function send(
  method: string,
  path: string,
  body?: object,
  key = 'one',
): Promise<{ status: number; body: Answer }> {
  const response = await fetch(`${server.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}` },
    ...(body && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer };
}

interface Answer {
  readonly id: string;
  readonly data: readonly { readonly id: string }[];
  readonly expires_at: number;
  readonly usage: { readonly prompt_tokens_details: { readonly cached_tokens: number } };
}

const complete = (prompt: readonly number[]) => send('POST', '/v1/completions', { model, prompt, max_tokens: 2 });
const cachedOf = async (prompt: readonly number[]) =>
  (await complete(prompt)).body.usage.prompt_tokens_details.cached_tokens;

describe('/v1/contexts', () => {
  it('pin a prefix while all other blocks are evicted, until they are deleted', async () => {
    const prefix = promptOf(1, 100);
    const created = await send('POST', '/v1/contexts', { model, prompt: prefix, ttl: 600 });
    expect(created).toMatchObject({
      status: 201,
      body: { object: 'context', ttl: 600, prompt_tokens: 100, cached_tokens: 96, instance: 0 },
    });
    const path = `/v1/contexts/${created.body.id}`;
    expect((await send('GET', path)).body).toEqual(created.body);
    expect((await send('GET', '/v1/contexts')).body.data).toEqual([created.body]);
    const flood = async (from: number) => {
      for (let kind = from; kind < from + 12; kind++) await complete(promptOf(kind, 300));
    };
    await flood(10);
    expect(await cachedOf([...prefix, 9, 9])).toBe(96);
    const renewed = await send('POST', path, { ttl: 1200 });
    expect(renewed.body.expires_at).toBeGreaterThan(created.body.expires_at);
    expect(await send('DELETE', path)).toMatchObject({ status: 200, body: { deleted: true } });
    expect((await send('GET', path)).status).toBe(404);
    await flood(30);
    expect(await cachedOf([...prefix, 9, 9])).toBe(0);
  });

  it('expire, and belong to their tenant alone', async () => {
    const { body } = await send('POST', '/v1/contexts', {
      model,
      messages: [{ role: 'user', content: 'fox '.repeat(40) }],
      ttl: 1,
    });
    const path = `/v1/contexts/${body.id}`;
    expect((await send('GET', path, undefined, 'other')).status).toBe(404);
    expect((await send('GET', '/v1/contexts', undefined, 'other')).body.data).toEqual([]);
    expect((await send('DELETE', path, undefined, 'other')).status).toBe(404);
    await until(async () => (await send('GET', path)).status === 404);
  });

  it('are refused with the field name or with figures', async () => {
    const wrong = await Promise.all([
      send('POST', '/v1/contexts', { model, prompt: promptOf(2, 10) }),
      send('POST', '/v1/contexts', { model, prompt: promptOf(2, 40), ttl: 0 }),
      send('POST', '/v1/contexts', { model }),
      send('POST', '/v1/contexts', { model, prompt: [promptOf(2, 40), promptOf(3, 40)] }),
      send('POST', '/v1/contexts', { model, prompt: promptOf(2, 40), forever: true }),
      send('POST', '/v1/contexts', { model, prompt: promptOf(2, 500) }),
    ]);
    expect(
      wrong.map(({ status, body }) => [status, (body as unknown as { error: { param: string } }).error.param]),
    ).toEqual([
      ...[
        [400, 'prompt'],
        [400, 'ttl'],
        [400, 'prompt'],
        [400, 'prompt'],
        [400, 'forever'],
        [400, 'prompt'],
      ],
    ]);
    expect(wrong.at(-1)?.body).toMatchObject({
      error: {
        message: expect.stringMatching(/^Cannot pin a prefix: it exceeds the memory for pins: \d+ tokens, \d+ fit$/),
      },
    });
  });
});
