// Files and batches in a folder: a restarted gateway continues them, even after a kill during a write.
import { createHash } from 'node:crypto';
import { appendFileSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { createApp, type GatewayOptions } from '../../../src/gateway/http/app.ts';
import { DataFolder } from '../../../src/gateway/http/data-folder.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { parseKeys } from '../../../src/gateway/keys/keys-file.ts';
import { GatewayMetrics } from '../../../src/gateway/metrics/metrics.ts';
import { byteTokenizer } from '../openai/byte-tokenizer.ts';
import { accepted, finished, type Script, ScriptedPort, started, tokens } from '../scripted-port.ts';
import { figuresOf, gatewayOptions, noCluster } from '../world.ts';

let path = '';
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), 'kvasir-data-'));
});
afterEach(() => rmSync(path, { recursive: true }));

const answering: Script = () => [accepted, started(0), tokens([104, 105]), finished('length')];
/** Starts a request and never finishes it. */
const neverAnswers: Script = () => [accepted, started(0), tokens([104])];

/** A gateway that is never closed, as if it were killed. */
function start(script: Script, users: readonly string[] | ApiKeys = ['k1', 'k2'], more: Partial<GatewayOptions> = {}) {
  const keys = users instanceof ApiKeys ? users : new ApiKeys({ users, admins: [] });
  const port = new ScriptedPort(script);
  const log: string[] = [];
  const data = new DataFolder(path, (line) => log.push(line));
  const stopping = new AbortController();
  const app = createApp(
    gatewayOptions(port, { keys, data, ...more }),
    new GatewayMetrics(port, noCluster, figuresOf(port).figures),
    stopping.signal,
  );
  const send = async (method: string, url: string, body?: unknown, key = 'k1') => {
    const isForm = body instanceof FormData;
    const init = body === undefined ? {} : { body: isForm ? body : JSON.stringify(body) };
    const response = await app.request(url, { method, headers: { authorization: `Bearer ${key}` }, ...init });
    return { status: response.status, text: await response.text() };
  };
  const json = async (...args: Parameters<typeof send>) => JSON.parse((await send(...args)).text) as Batch;
  return { port, log, send, json, stopping };
}

interface Batch {
  readonly id: string;
  readonly status: string;
  readonly output_file_id: string;
  readonly request_counts: { readonly total: number; readonly completed: number; readonly failed: number };
}
type Gateway = ReturnType<typeof start>;

const line = (i: number) => ({
  ...{ custom_id: `job-${i}`, method: 'POST', url: '/v1/completions' },
  body: { model: 'bytes', prompt: [i + 1], max_tokens: 2 },
});

function formOf(lines: number): FormData {
  const form = new FormData();
  form.set('purpose', 'batch');
  const text = Array.from({ length: lines }, (_, i) => JSON.stringify(line(i))).join('\n');
  form.set('file', new File([text], 'jobs.jsonl'));
  return form;
}

async function upload({ json }: Gateway, lines: number): Promise<string> {
  return (await json('POST', '/v1/files', formOf(lines))).id;
}

const create = async (gateway: Gateway, file: string) =>
  gateway.json('POST', '/v1/batches', { input_file_id: file, endpoint: '/v1/completions', completion_window: '24h' });

async function until({ json }: Gateway, id: string, holds: (batch: Batch) => boolean): Promise<Batch> {
  for (;;) {
    const batch = await json('GET', `/v1/batches/${id}`);
    if (holds(batch)) return batch;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const ended = (gateway: Gateway, id: string) => until(gateway, id, ({ status }) => status !== 'in_progress');

const idsOf = (text: string) =>
  text
    .trimEnd()
    .split('\n')
    .map((each) => (JSON.parse(each) as { custom_id: string }).custom_id)
    .toSorted();
const expectedIds = Array.from({ length: 30 }, (_, i) => `job-${i}`).toSorted();

it('a restarted gateway runs the unanswered requests of a batch, and does not repeat answered ones', async () => {
  let left = 7;
  const first = start((request) => (left-- > 0 ? answering(request) : neverAnswers(request)));
  const { id } = await create(first, await upload(first, 30));
  await until(first, id, ({ request_counts: { completed } }) => completed === 7);
  // The gateway was killed while it wrote a line.
  appendFileSync(join(path, 'batches', `${id}.answers`), '{"customId": "job-29", "kind": "ans');
  const next = start(answering);
  const batch = await ended(next, id);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 30, completed: 30, failed: 0 } });
  expect(next.port.requests).toHaveLength(23);
  const output = await next.send('GET', `/v1/files/${batch.output_file_id}/content`);
  expect(idsOf(output.text)).toEqual(expectedIds);
  // Another start finds the ended batch under the same key, at any place among the keys.
  const last = start(neverAnswers, ['k3', 'k1']);
  expect(await last.json('GET', `/v1/batches/${id}`)).toEqual(batch);
  expect((await last.send('GET', `/v1/files/${batch.output_file_id}/content`)).text).toBe(output.text);
  expect((await last.send('GET', `/v1/batches/${id}`, undefined, 'k3')).status).toBe(404);
  expect(last.port.requests).toEqual([]);
  expect(readdirSync(join(path, 'batches'))).toEqual([`${id}.json`]);
});

it('a stopped gateway leaves its batches to the next one, and a cancelled batch stays cancelled', async () => {
  const first = start(neverAnswers);
  const file = await upload(first, 30);
  const [running, cancelled] = [await create(first, file), await create(first, file)];
  await first.json('POST', `/v1/batches/${cancelled.id}/cancel`);
  await until(first, cancelled.id, ({ status }) => status === 'cancelled');
  first.stopping.abort();
  await new Promise((resolve) => setImmediate(resolve));
  const next = start(answering);
  expect(await ended(next, running.id)).toMatchObject({ status: 'completed', request_counts: { completed: 30 } });
  expect(await until(next, cancelled.id, ({ status }) => status !== 'cancelling')).toMatchObject({
    status: 'cancelled',
  });
  expect((await next.send('DELETE', `/v1/files/${file}`)).status).toBe(200);
  expect((await start(answering).send('GET', `/v1/files/${file}`)).status).toBe(404);
});

it('batches of one file share it on disk, and run on when it is deleted and after a restart', async () => {
  const first = start(neverAnswers);
  const file = await upload(first, 30);
  const batches = [await create(first, file), await create(first, file), await create(first, file)];
  const inode = (name: string) => statSync(join(path, name)).ino;
  const inputs = batches.map(({ id }) => inode(join('batches', `${id}.input`)));
  expect(new Set(inputs)).toEqual(new Set([inode(join('files', `${file}.bytes`))]));
  expect((await first.send('DELETE', `/v1/files/${file}`)).status).toBe(200);
  expect((await first.send('GET', `/v1/files/${file}/content`)).status).toBe(404);
  first.stopping.abort();
  const next = start(answering);
  for (const { id } of batches)
    expect(await ended(next, id)).toMatchObject({ status: 'completed', request_counts: { completed: 30 } });
  expect(readdirSync(join(path, 'batches')).every((name) => name.endsWith('.json'))).toBe(true);
});

it('a refused request is repeated until it is accepted, and tokenized once', async () => {
  let refusals = 3;
  const refused: Script = () => [{ kind: 'failed', code: 'KV_OVERLOADED', message: 'full', retryAfterMs: 1 }];
  const encode = vi.fn(async (text: string) => Int32Array.from(byteTokenizer.encode(text)));
  const gateway = start((request) => (refusals-- > 0 ? refused : answering)(request), ['k1'], { encode });
  const form = new FormData();
  form.set('purpose', 'batch');
  const text = { ...line(1), body: { ...line(1).body, prompt: 'a long text' } };
  form.set('file', new File([JSON.stringify(text)], 'jobs.jsonl'));
  const { id } = await gateway.json('POST', '/v1/files', form);
  const batch = await ended(gateway, (await create(gateway, id)).id);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 1, failed: 0 } });
  expect(gateway.port.requests.map(({ prompt }) => prompt.length)).toEqual([11, 11, 11, 11]);
  expect(encode).toHaveBeenCalledTimes(1);
});

it('runs responses, and refuses streams and other URLs', async () => {
  const gateway = start(answering);
  const line = (id: string, more: object, url = '/v1/responses') =>
    JSON.stringify({ custom_id: id, method: 'POST', url, body: { model: 'bytes', input: 'hi', ...more } });
  const batchOf = async (...lines: string[]): Promise<Batch> => {
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new File([lines.join('\n')], 'jobs.jsonl'));
    const { id } = await gateway.json('POST', '/v1/files', form);
    const request = { input_file_id: id, endpoint: '/v1/responses', completion_window: '24h' };
    return ended(gateway, (await gateway.json('POST', '/v1/batches', request)).id);
  };
  const batch = await batchOf(line('plain', { max_output_tokens: 2 }), line('streamed', { stream: true }));
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 2, completed: 1, failed: 1 } });
  const output = await gateway.send('GET', `/v1/files/${batch.output_file_id}/content`);
  const answer = { object: 'response', status: 'incomplete', output: [{ content: [{ text: 'hi' }] }] };
  expect(JSON.parse(output.text)).toMatchObject({ custom_id: 'plain', response: { status_code: 200, body: answer } });
  expect(await batchOf(line('other', {}, '/v1/messages'))).toMatchObject({ status: 'failed' });
});

it('ignores incomplete and foreign files', async () => {
  const first = start(answering);
  const file = await upload(first, 2);
  writeFileSync(join(path, 'files', 'file-x.bytes'), 'without a description');
  writeFileSync(join(path, 'files', 'file-y.json'), '{"id": 5}');
  writeFileSync(join(path, 'batches', 'batch_z.json.part'), '{');
  const next = start(answering);
  expect(next.log).toEqual([expect.stringMatching(/^Ignored .*file-y\.json: /)]);
  expect((await next.send('GET', `/v1/files/${file}`)).status).toBe(200);
  expect(readdirSync(join(path, 'batches'))).toEqual([]);
  expect(readdirSync(join(path, 'files')).toSorted()).toEqual(
    [`${file}.bytes`, `${file}.json`, 'file-y.json'].toSorted(),
  );
});

it('answers 503 when the folder cannot be written, and leaves nothing', async () => {
  const gateway = start(answering);
  const file = await upload(gateway, 2);
  const written = readdirSync(join(path, 'files'));
  rmSync(join(path, 'batches'), { recursive: true });
  const request = { input_file_id: file, endpoint: '/v1/completions', completion_window: '24h' };
  const { status, text } = await gateway.send('POST', '/v1/batches', request);
  expect([status, JSON.parse(text).error]).toMatchObject([
    503,
    { code: 'not_kept', message: 'Cannot store data: the data folder cannot be written: ENOENT' },
  ]);
  expect(gateway.log).toEqual([expect.stringMatching(/^Cannot write .*batch_\w+\.input: ENOENT$/)]);
  expect(JSON.parse((await gateway.send('GET', '/v1/batches')).text).data).toEqual([]);
  expect(readdirSync(join(path, 'files'))).toEqual(written);
  // A file that has gone from the disk is the same for a download.
  rmSync(join(path, 'files', `${file}.bytes`));
  const gone = await gateway.send('GET', `/v1/files/${file}/content`);
  expect([gone.status, JSON.parse(gone.text).error.message]).toEqual([503, 'Cannot read stored data: ENOENT']);
});

it('refuses a batch above the limit of the key, and reserves capacity for answers when a batch is created', async () => {
  const hash = createHash('sha256').update('k1').digest('hex');
  const limits = 'limits: { batch_requests: 5, files: 2 }';
  const keys = new ApiKeys({ users: [], admins: [] }, parseKeys(`keys: [{ name: a, sha256: ${hash}, ${limits} }]`));
  const limited = start(neverAnswers, keys);
  const file = await upload(limited, 3);
  const request = { input_file_id: file, endpoint: '/v1/completions', completion_window: '24h' };
  expect((await limited.json('POST', '/v1/batches', request)).status).toBe('in_progress');
  const second = await limited.send('POST', '/v1/batches', request);
  expect([second.status, JSON.parse(second.text).error.param]).toEqual([429, 'batch_requests']);
  await upload(limited, 1);
  const third = JSON.parse((await limited.send('POST', '/v1/files', formOf(1))).text);
  expect(third).toMatchObject({ error: { param: 'files', code: 'key_limit' } });
});

it('a batch whose answers would find no capacity is refused before it starts', async () => {
  const open = start(neverAnswers);
  const file = await upload(open, 30);
  const request = { input_file_id: file, endpoint: '/v1/completions', completion_window: '24h' };
  let created = 0;
  for (;;) {
    const { status, text } = await open.send('POST', '/v1/batches', request);
    if (status === 200) created++;
    else {
      expect([status, JSON.parse(text).error.code]).toEqual([429, 'no_room']);
      break;
    }
  }
  // 160,000 bytes for all files: each batch reserves some 33,000.
  expect(created).toBe(4);
  // The reservations of running batches outlive a restart, and end with the batches.
  open.stopping.abort();
  const next = start(neverAnswers);
  expect((await next.send('POST', '/v1/batches', request)).status).toBe(429);
  const [batch] = (JSON.parse((await next.send('GET', '/v1/batches')).text) as { data: Batch[] }).data;
  await next.send('POST', `/v1/batches/${batch?.id}/cancel`);
  await until(next, batch?.id ?? '', ({ status }) => status === 'cancelled');
  expect((await next.send('POST', '/v1/batches', request)).status).toBe(200);
});

it('only the user of the process may read stored files', async () => {
  const gateway = start(answering);
  await ended(gateway, (await create(gateway, await upload(gateway, 2))).id);
  const modes = (folder: string) =>
    readdirSync(join(path, folder)).map((name) => statSync(join(path, folder, name)).mode & 0o777);
  expect(new Set([...modes('files'), ...modes('batches')])).toEqual(new Set([0o600]));
  expect(['files', 'batches'].map((folder) => statSync(join(path, folder)).mode & 0o777)).toEqual([0o700, 0o700]);
});
