// Batches through the official client: a file of requests in, a file of answers out, behind interactive requests.
import OpenAI, { toFile } from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningServer, startServer, until } from './server.ts';

let server: RunningServer;
let client: OpenAI;
beforeAll(async () => {
  server = await startServer([
    '--threads',
    '1',
    '--api-key',
    'one',
    'other',
    '--admin-key',
    'ops',
    '--context',
    '512',
    '--kv-memory',
    '32m',
    '--sparse',
    'uniform',
    '--sparse-window',
    '4',
  ]);
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'one', maxRetries: 0 });
});
afterAll(() => server.stop());

const model = 'kvasir-tiny-q8_0';
const line = (i: number, body: object, url = '/v1/completions') =>
  JSON.stringify({ custom_id: `job-${i}`, method: 'POST', url, body: { model, ...body } });

async function upload(lines: readonly string[]): Promise<string> {
  const file = await toFile(Buffer.from(lines.join('\n')), 'jobs.jsonl');
  return (await client.files.create({ file, purpose: 'batch' })).id;
}

type Endpoint = '/v1/completions' | '/v1/chat/completions' | '/v1/embeddings';
const create = (input_file_id: string, endpoint: Endpoint = '/v1/completions') =>
  client.batches.create({ input_file_id, endpoint, completion_window: '24h', metadata: { of: 'test' } });

async function ended(id: string) {
  await until(async () => (await client.batches.retrieve(id)).status !== 'in_progress');
  return client.batches.retrieve(id);
}

async function linesOf(fileId: string | null | undefined): Promise<Record<string, unknown>[]> {
  const text = await (await client.files.content(fileId ?? '')).text();
  return text
    .trimEnd()
    .split('\n')
    .map((each) => JSON.parse(each) as Record<string, unknown>);
}

const promptOf = (kind: number, length: number) => Array.from({ length }, (_, i) => 5 + ((kind * 37 + i * 11) % 400));

describe('/v1/batches', () => {
  it('returns the response of the endpoint for every line, and reports failed lines', async () => {
    const prompts = Array.from({ length: 20 }, (_, i) => promptOf(i, 30 + 5 * i));
    // Some requests have a KV budget.
    const greedy = (i: number) => ({ max_tokens: 6, temperature: 0, ...(i % 4 === 3 && { kv_budget: 16 }) });
    const expected = await Promise.all(
      prompts.map((prompt, i) => client.completions.create({ model, prompt, ...greedy(i) })),
    );
    const wrong = [line(100, { prompt: [5], max_tokens: -1 }), line(101, { prompt: [5], stream: true })];
    wrong.push(line(102, { prompt: [5], kv_budget: 4 }), line(103, { prompt: [5], kv_budget: 0 }));
    const id = await upload([...prompts.map((prompt, i) => line(i, { prompt, ...greedy(i) })), ...wrong]);
    const batch = await ended((await create(id)).id);
    expect(batch).toMatchObject({
      ...{ status: 'completed', request_counts: { total: 24, completed: 20, failed: 4 }, metadata: { of: 'test' } },
    });
    const answers = await linesOf(batch.output_file_id);
    const byId = new Map(answers.map((answer) => [answer.custom_id, answer.response as { body: OpenAI.Completion }]));
    expect(prompts.map((_, i) => byId.get(`job-${i}`)?.body.choices[0]?.text)).toEqual(
      expected.map(({ choices }) => choices[0]?.text),
    );
    expect(byId.get('job-7')?.body.usage?.prompt_tokens_details).toMatchObject({ kept_tokens: 16 });
    const errors = await linesOf(batch.error_file_id);
    expect(errors.map(({ custom_id }) => custom_id).sort()).toEqual(['job-100', 'job-101', 'job-102', 'job-103']);
    expect(server.output()).not.toContain('Warning');
    expect(errors[0]).toMatchObject({
      response: { status_code: 400, body: { error: { type: 'invalid_request_error' } } },
    });
    expect((await client.batches.list()).data.map((each) => each.id)).toContain(batch.id);
  });

  it('runs embeddings', async () => {
    const inputs = ['a fox', ['a lantern', 'snow']];
    const expected = await Promise.all(inputs.map((input) => client.embeddings.create({ model, input })));
    const file = await upload(inputs.map((input, i) => line(i, { input }, '/v1/embeddings')));
    const batch = await ended((await create(file, '/v1/embeddings')).id);
    const answers = (await linesOf(batch.output_file_id)).sort((a, b) =>
      `${a.custom_id}`.localeCompare(`${b.custom_id}`),
    );
    const vectors = answers.map(({ response }) => (response as { body: OpenAI.CreateEmbeddingResponse }).body.data);
    expect(vectors.map((data) => data.length)).toEqual([1, 2]);
    for (const [i, data] of vectors.entries())
      for (const [j, { embedding }] of data.entries())
        expect(embedding[0]).toBeCloseTo(expected[i]?.data[j]?.embedding[0] ?? Number.NaN, 4);
  });

  it('yields to waiting requests, and marks its jobs in their traces', async () => {
    const file = await upload(
      Array.from({ length: 40 }, (_, i) => line(i, { prompt: promptOf(i, 90), max_tokens: 400, ignore_eos: true })),
    );
    const batch = await create(file);
    const response = await client.completions
      .create({ model, prompt: promptOf(50, 60), max_tokens: 8, temperature: 0 })
      .withResponse();
    // Forty jobs of 400 tokens each were submitted before it.
    expect((await client.batches.retrieve(batch.id)).status).toBe('in_progress');
    const requestId = response.response.headers.get('x-request-id') ?? '';
    const trace = await fetch(`${server.url}/api/requests/${requestId}`, { headers: { authorization: 'Bearer one' } });
    expect(await trace.json()).toMatchObject({ choices: [{ state: 'finished', batch: false }] });
    await client.batches.cancel(batch.id);
    await until(async () => (await client.batches.retrieve(batch.id)).status === 'cancelled');
    const { request_counts: counts } = await client.batches.retrieve(batch.id);
    expect(counts?.total).toBe(40);
    expect(counts?.completed).toBeLessThan(40);
    const isIdle = async () => {
      const text = await (await fetch(`${server.url}/metrics`, { headers: { authorization: 'Bearer ops' } })).text();
      return text.includes('\nkvasir_kv_pages_used 0\n') && text.includes('\nkvasir_requests_running 0\n');
    };
    await until(isIdle);
  });

  it('refuses invalid input with the line or the field', async () => {
    const chat = { messages: [{ role: 'user', content: 'hi' }] };
    const bad = await upload([
      line(0, chat, '/v1/chat/completions'),
      '{',
      line(0, chat, '/v1/chat/completions'),
      line(1, chat),
    ]);
    const failed = await create(bad, '/v1/chat/completions');
    expect([failed.status, failed.errors?.data?.map(({ code, line: at }) => [code, at])]).toEqual([
      'failed',
      [
        ['invalid_json_line', 2],
        ['duplicate_custom_id', 3],
        ['invalid_url', 4],
      ],
    ]);
    await expect(create('file-0')).rejects.toMatchObject({ status: 404 });
    await expect(create(bad, '/v1/files' as Endpoint)).rejects.toMatchObject({
      status: 400,
      param: 'endpoint',
    });
    const other = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'other', maxRetries: 0 });
    await expect(other.files.retrieve(bad)).rejects.toMatchObject({ status: 404 });
    await expect(other.batches.retrieve(failed.id)).rejects.toMatchObject({ status: 404 });
    await expect(
      client.files.create({ file: await toFile(Buffer.from('x'), 'x'), purpose: 'fine-tune' }),
    ).rejects.toMatchObject({ status: 400, param: 'purpose' });
    expect((await client.files.delete(bad)).deleted).toBe(true);
    await expect(client.files.retrieve(bad)).rejects.toMatchObject({ status: 404 });
  });
});
