// Texts that engines tokenize: turns, engines that fail, refuse, lie or hang, and what is kept.
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { EngineHttp } from '../../../src/runtime/fleet/engine-http.ts';
import { EnginesUnavailable, EngineTokenizer } from '../../../src/runtime/fleet/engine-tokenizer.ts';

const opened: (() => void)[] = [];
afterEach(() => {
  for (const close of opened.splice(0)) close();
});

async function engineOf(answer: RequestListener): Promise<EngineHttp> {
  const server: Server = createServer(answer);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const http = new EngineHttp(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, 'secret');
  opened.push(() => {
    http.close();
    server.closeAllConnections();
    server.close();
  });
  return http;
}

/** Answers with a status and a body, and counts the calls. */
async function answering(status: number, body: unknown) {
  const seen: unknown[] = [];
  const http = await engineOf((request, response) => {
    let text = '';
    request.on('data', (part: Buffer) => {
      text += part;
    });
    request.on('end', () => {
      seen.push([request.url, request.headers.authorization, JSON.parse(text)]);
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(typeof body === 'string' ? body : JSON.stringify(body));
    });
  });
  return { http, seen };
}

const prompt = (text: string) => ({ prompt: text, add_special_tokens: true });

it('takes turns over the engines, and asks for a text once', async () => {
  const engines = await Promise.all([answering(200, { tokens: [1, 2] }), answering(200, { tokens: [1, 2] })]);
  const tokenizer = new EngineTokenizer(() => engines.map(({ http }) => http), 'm');
  for (const text of ['a', 'b', 'a', 'b']) expect([...(await tokenizer.tokenize(prompt(text)))]).toEqual([1, 2]);
  expect([...(await tokenizer.tokenize({ messages: [{ role: 'user' }], continue_final_message: true }))]).toEqual([
    1, 2,
  ]);
  expect(engines.map(({ seen }) => seen)).toEqual([
    [
      ['/tokenize', 'Bearer secret', { model: 'm', ...prompt('a') }],
      ['/tokenize', 'Bearer secret', { model: 'm', messages: [{ role: 'user' }], continue_final_message: true }],
    ],
    [['/tokenize', 'Bearer secret', { model: 'm', ...prompt('b') }]],
  ]);
});

it.each([
  ['answers 500', 500, {}],
  ['answers 404', 404, { detail: 'Not Found' }],
  ['answers without JSON', 200, '<html>'],
  ['states text', 200, { tokens: ['a'] }],
  ['states ids beyond 31 bits', 200, { tokens: [2 ** 31] }],
  ['states no ids', 200, { count: 3 }],
])('passes over an engine that %s', async (_, status, body) => {
  const [wrong, right] = await Promise.all([answering(status, body), answering(200, { tokens: [7] })]);
  const both = new EngineTokenizer(() => [wrong.http, right.http], 'm');
  expect([...(await both.tokenize(prompt('a')))]).toEqual([7]);
  const alone = new EngineTokenizer(() => [wrong.http], 'm').tokenize(prompt('a'));
  await expect(alone).rejects.toThrow(EnginesUnavailable);
  await expect(alone).rejects.toThrow(`engine ${wrong.http.url.href}`);
});

it('fails with the reason of an engine that refuses the input, and where no engine serves', async () => {
  const refusing = await answering(400, { error: { message: 'Conversation roles must alternate' } });
  const other = await answering(200, { tokens: [7] });
  const tokenizer = new EngineTokenizer(() => [refusing.http, other.http], 'm');
  await expect(tokenizer.tokenize(prompt('a'))).rejects.toThrow('Cannot tokenize: Conversation roles must alternate');
  expect(other.seen).toEqual([]);
  await expect(new EngineTokenizer(() => [], 'm').tokenize(prompt('a'))).rejects.toThrow('no engine serves');
});

it('ends the call with its request', async () => {
  const closed = { count: 0 };
  const arrived = { count: 0 };
  const hanging = await engineOf((_, response) => {
    arrived.count++;
    response.on('close', () => void closed.count++);
  });
  const request = new AbortController();
  const pending = new EngineTokenizer(() => [hanging, hanging], 'm').tokenize(prompt('a'), request.signal);
  while (arrived.count === 0) await new Promise((resolve) => setTimeout(resolve, 2));
  request.abort();
  await expect(pending).rejects.toThrow('the request has ended');
  while (closed.count === 0) await new Promise((resolve) => setTimeout(resolve, 2));
  expect(arrived.count).toBe(1);
});
