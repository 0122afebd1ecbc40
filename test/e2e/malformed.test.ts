// Two thousand malformed requests to a real server: each is refused in the OpenAI shape with the name of its field, and leaves no state behind.
import { readFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Malformed, malformedRequests } from './malformed.ts';
import type { ServedFacts } from './malformed-fields.ts';
import { metric, type RunningServer, startServer, until } from './server.ts';

const seed = Number(process.env.KVASIR_SEED ?? 4);
const facts: ServedFacts = { model: 'kvasir-tiny-q8_0', vocabSize: 4096, contextTokens: 512, bodyBytesMax: 100_000 };
const agent = new Agent({ keepAlive: true, maxSockets: 8 });
let server: RunningServer;

beforeAll(async () => {
  server = await startServer([
    '--context',
    String(facts.contextTokens),
    '--body-limit',
    String(facts.bodyBytesMax),
    '--log-level',
    'error',
  ]);
});
afterAll(async () => {
  agent.destroy();
  await server.stop();
});

interface Answer {
  readonly status: number;
  readonly type: string;
  readonly text: string;
}

function send({ method, path, headers, body }: Malformed): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const own = { ...headers, 'content-length': String(Buffer.byteLength(body)) };
    const outgoing = request(`${server.url}${path}`, { method, headers: own, agent }, (incoming) => {
      let text = '';
      incoming.setEncoding('utf8').on('data', (piece: string) => {
        text += piece;
      });
      incoming.on('end', () =>
        resolve({ status: incoming.statusCode ?? 0, type: incoming.headers['content-type'] ?? '', text }),
      );
      incoming.on('error', reject);
    });
    outgoing.on('error', reject);
    outgoing.end(body);
  });
}

interface Refusal {
  readonly message: string;
  readonly type: string;
  readonly param: string | null;
  readonly code: string;
}

function refusalOf({ text, type }: Answer): Refusal {
  expect(type).toMatch(/^application\/json/);
  const { error, ...rest } = JSON.parse(text) as { error: Refusal };
  expect(rest).toEqual({});
  expect(Object.keys(error).sort()).toEqual(['code', 'message', 'param', 'type']);
  expect(error.message).toMatch(/^Cannot [^\n\r]+$/);
  expect(error.message.length).toBeLessThan(400);
  return error;
}

function check(malformed: Malformed, answer: Answer): void {
  expect(answer.status).toBe(malformed.status);
  const { message, param, code } = refusalOf(answer);
  expect(code).toMatch(malformed.code);
  if (malformed.field === undefined) return;
  const inMessages = malformed.code.test('context_length_exceeded');
  // For a long prompt with few output tokens either field may be named; long unknown names are cut.
  if (inMessages) expect(['max_tokens', 'messages']).toContain(param);
  else expect(`${param}.`.startsWith(`${malformed.field}.`)).toBe(true);
  const shown = malformed.status === 404 || inMessages ? /model|context/ : malformed.field;
  expect(message).toMatch(typeof shown === 'string' ? new RegExp(`'${pattern(shown)}|${pattern(shown)}`) : shown);
}

const pattern = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

function residentBytes(): number | undefined {
  if (process.platform !== 'linux') return undefined;
  const kilobytes = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.process.pid}/status`, 'utf8'))?.[1];
  return kilobytes === undefined ? undefined : Number(kilobytes) * 1024;
}

async function goodAnswer(): Promise<string> {
  const body = { model: facts.model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0 };
  const answer = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  expect(answer.status).toBe(200);
  const { choices } = (await answer.json()) as { choices: { text: string }[] };
  return choices[0]?.text ?? '';
}

describe('malformed requests', () => {
  it('are each a 4xx that names the field, and the server continues with steady memory', async () => {
    const before = await goodAnswer();
    const requests = malformedRequests(2000, seed, facts);
    const faults: string[] = [];
    let restingBytes: number | undefined;
    for (let at = 0; at < requests.length; at += 8) {
      if (at === 1000) restingBytes = residentBytes();
      const some = requests.slice(at, at + 8);
      const answers = await Promise.all(some.map(send));
      for (const [index, answer] of answers.entries()) {
        try {
          check(some[index] as Malformed, answer);
        } catch (error) {
          const { method, path, headers, body } = some[index] as Malformed;
          const why = error instanceof Error ? error.message.split('\n')[0] : String(error);
          const received = `${answer.status} ${answer.text.slice(0, 200)}`;
          faults.push(
            `KVASIR_SEED=${seed} request ${at + index}: ${why}: ${received}: ${method} ${path} ${JSON.stringify(headers)} ${String(body).slice(0, 300)}`,
          );
        }
      }
    }
    expect(faults).toEqual([]);
    expect(await goodAnswer()).toBe(before);
    await until(async () => (await metric(server, 'kvasir_kv_pages_used')) === 0);
    const grownBytes = (residentBytes() ?? 0) - (restingBytes ?? 0);
    expect(grownBytes).toBeLessThan(64 * 2 ** 20);
    expect(server.output()).not.toMatch(/"level":50|rror:/);
  });
});

const extremes: readonly object[] = [
  { repetition_penalty: 0.01 },
  { repetition_penalty: 10, prompt: 'Once upon a time' },
  { temperature: 1e-300 },
  { temperature: 1e-44 },
  { top_p: 1e-300 },
  { top_k: Number.MAX_SAFE_INTEGER },
  { top_k: 2 ** 31 },
  { min_p: 1 },
  { seed: Number.MIN_SAFE_INTEGER, n: 16 },
  { frequency_penalty: -2, presence_penalty: -2, temperature: 2, max_tokens: 60, ignore_eos: true },
  { logit_bias: Object.fromEntries(Array.from({ length: 4096 }, (_, id) => [id, id % 2 === 0 ? 100 : -100])) },
  { logit_bias: { 5: 100 }, temperature: 1e-300, repetition_penalty: 0.01, prompt: [5, 5, 5] },
  { stop: Array.from({ length: 16 }, (_, i) => String.fromCharCode(97 + i).repeat(1024)) },
  { prompt: '\ud800\u0000\uffff\u{10ffff}' },
  { echo: true, max_tokens: 0, logprobs: 20 },
];

describe('extreme requests', () => {
  it.each(extremes)('%j is served', async (fields) => {
    const extreme = { model: facts.model, prompt: 'A fox', max_tokens: 4, return_token_ids: true, ...fields };
    const answer = await fetch(`${server.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(extreme),
    });
    expect(await answer.text()).toMatch(/"choices":\[\{.*"token_ids"/);
    expect(answer.status).toBe(200);
  });
});

const good = '{"model":"kvasir-tiny-q8_0","prompt":[5],"max_tokens":1}';
const head = (more: string, length: string | number = good.length): string =>
  `POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nHost: localhost\r\nContent-Length: ${length}\r\n${more}`;
const broken: readonly (readonly [what: string, bytes: string, status: number])[] = [
  ['no HTTP at all', 'hello\r\n\r\n', 400],
  ['a version from the future', 'GET /v1/models HTTP/9.7\r\nHost: localhost\r\n\r\n', 400],
  [
    'no host',
    `POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: ${good.length}\r\n\r\n${good}`,
    400,
  ],
  ['an unknown method', `FETCH /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n`, 400],
  ['a space in the address', 'GET /v1/mo dels HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
  ['a header without a name', `${head(': x\r\n')}\r\n${good}`, 400],
  ['a header with a control character', `${head('x-a: a\0b\r\n')}\r\n${good}`, 400],
  ['a negative length', `${head('', -1)}\r\n${good}`, 400],
  ['a length in words', `${head('', 'ten')}\r\n${good}`, 400],
  ['two lengths', `${head('Content-Length: 3\r\n')}\r\n${good}`, 400],
  ['a length and chunks', `${head('Transfer-Encoding: chunked\r\n')}\r\n0\r\n\r\n`, 400],
  [
    'a chunk with an invalid size',
    'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n',
    400,
  ],
  ['headers without an end', `GET /health HTTP/1.1\r\nHost: localhost\r\nx-a: ${'a'.repeat(70_000)}\r\n\r\n`, 431],
  ['an expectation', `${head('Expect: a miracle\r\n')}\r\n${good}`, 417],
  ['a tunnel', 'CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n', 405],
  ['an invalid address', 'GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n', 400],
];

/** Sends bytes and reads until the response is complete or the server closes. */
function sendBytes(bytes: string): Promise<Answer> {
  const { hostname, port } = new URL(server.url);
  return new Promise((resolve, reject) => {
    let received = '';
    const socket = connect(Number(port), hostname, () => socket.write(bytes, 'latin1'));
    const finish = (): void => {
      const [head = '', text = ''] = received.split('\r\n\r\n');
      socket.destroy();
      resolve({
        status: Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1]),
        type: /content-type: (.*)/i.exec(head)?.[1] ?? '',
        text: text.startsWith('{') ? text : (text.split('\r\n')[1] ?? ''),
      });
    };
    socket.setEncoding('utf8').on('data', (piece: string) => {
      received += piece;
      if (received.includes('}}')) finish();
    });
    socket.on('end', finish);
    socket.on('error', reject);
  });
}

describe('broken HTTP', () => {
  it.each(broken)('%s is refused in the same shape', async (_what, bytes, status) => {
    const answer = await sendBytes(bytes);
    expect(answer.status).toBe(status);
    refusalOf(answer);
  });

  it('leaves the server serving', async () => {
    expect(await goodAnswer()).not.toBe('');
  });
});
