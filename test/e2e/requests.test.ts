// Request traces over HTTP: placements with reasons, predictions and outcomes.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningServer, startServer } from './server.ts';

let server: RunningServer;
beforeAll(async () => {
  server = await startServer(['--instances', '2', '--threads', '2', '--kv-memory', '32m', '--api-key', 'secret']);
});
afterAll(() => server.stop());

const authorization = 'Bearer secret';

function complete(body: object): Promise<Response> {
  return fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'kvasir-tiny-q8_0', max_tokens: 4, temperature: 0, ...body }),
  });
}

async function traceOf(id: string): Promise<{ id: string; choices: Record<string, unknown>[] }> {
  const response = await fetch(`${server.url}/api/requests/${id}`, { headers: { authorization } });
  expect(response.status).toBe(200);
  return (await response.json()) as { id: string; choices: Record<string, unknown>[] };
}

const prompt = Array.from({ length: 70 }, (_, i) => 5 + i);

describe('GET /api/requests/ID', () => {
  it('reports the placement, the predictions and the cache hits of a request', async () => {
    const first = await complete({ prompt });
    const answer = (await first.json()) as { id: string };
    const trace = await traceOf(first.headers.get('x-request-id') ?? '');
    expect(await traceOf(answer.id)).toEqual(trace);
    expect(trace.choices).toMatchObject([
      {
        ...{ index: 0, state: 'finished', prompt_tokens: 70, cached_tokens: 0, output_tokens: 4, max_tokens: 4 },
        ttft_ms: { predicted: expect.any(Number), actual: expect.any(Number) },
        tbt_ms: { actual: expect.any(Number) },
        blocks: { hits: 0, misses: { never_seen: 2, evicted: 0, elsewhere: 0, partial: 1 } },
        ...{ finish_reason: 'length', failure: null },
      },
    ]);
    const again = await complete({ prompt });
    const [choice] = (await traceOf(again.headers.get('x-request-id') ?? '')).choices;
    const [placed] = trace.choices[0].placements as { instance: number }[];
    expect(choice).toMatchObject({
      ...{ cached_tokens: 64, blocks: { hits: 2, misses: { never_seen: 0, partial: 1 } } },
      placements: [{ instance: placed.instance, decode_at: null, fetched: null, inline: false }],
    });
    const [{ considered }] = choice.placements as { considered: { instance: number; matched_tokens: number }[] }[];
    expect(considered.map(({ instance, matched_tokens }) => [instance, matched_tokens])).toEqual(
      [0, 1].map((instance) => [instance, instance === placed.instance ? 64 : 0]),
    );
  });

  it('reports each choice of a request, also while it runs', async () => {
    const response = await complete({ prompt: 'Once', n: 2, max_tokens: 200, ignore_eos: true, stream: true });
    const id = response.headers.get('x-request-id') ?? '';
    expect((await traceOf(id)).choices).toHaveLength(2);
    await response.body?.cancel();
    for (;;) {
      const states = (await traceOf(id)).choices.map(({ state }) => state);
      if (states.every((state) => state === 'cancelled' || state === 'finished')) break;
    }
  });

  it('requires the API key, and responds 404 to unknown ids', async () => {
    const path = `${server.url}/api/requests/req-0`;
    expect((await fetch(path)).status).toBe(401);
    const unknown = await fetch(path, { headers: { authorization } });
    expect([unknown.status, await unknown.json()]).toMatchObject([404, { error: { code: 'request_not_found' } }]);
    expect((await fetch(path, { method: 'POST', headers: { authorization } })).status).toBe(405);
  });
});
