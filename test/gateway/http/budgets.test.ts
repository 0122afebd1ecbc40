// Budgets of the HTTP server: connections, bodies in flight, clients that do not read, and texts that cannot fit.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { BodyBudget } from '../../../src/gateway/http/body.ts';
import { listen } from '../../../src/gateway/http/server.ts';
import { SseStream } from '../../../src/gateway/http/sse.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import type { Caller } from '../../../src/gateway/keys/caller.ts';
import { accepted, ScriptedPort } from '../scripted-port.ts';
import { answering, gateway, gatewayOptions } from '../world.ts';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

function open(port: number): Promise<Socket> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(socket));
    socket.on('error', () => {});
    closing.push(() => socket.destroy());
  });
}

/** The next response: head and whole body, or what arrives before the connection closes. */
function wholeAnswer(socket: Socket): Promise<string> {
  return new Promise((resolve) => {
    let text = '';
    const end = (): void => {
      socket.off('data', add);
      socket.off('close', end);
      resolve(text);
    };
    const add = (bytes: Buffer): void => {
      text += bytes.toString('latin1');
      const [head = '', ...body] = text.split('\r\n\r\n');
      const [, length] = /content-length: (\d+)/i.exec(head) ?? [];
      const isWhole =
        length === undefined ? text.endsWith('\r\n0\r\n\r\n') : body.join('\r\n\r\n').length >= Number(length);
      if (isWhole) end();
    };
    socket.on('data', add);
    socket.on('close', end);
  });
}

it('closes connections above the limit, and serves the others', async () => {
  const options = gatewayOptions(new ScriptedPort(answering('yes')), { connectionsMax: 1 });
  const server = await listen(options, '127.0.0.1', 0);
  closing.push(() => server.drain({ waitMs: 0, timeoutMs: 0 }));
  const first = await open(server.port);
  const answered = wholeAnswer(first);
  first.write('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n');
  expect(await answered).toMatch(/^HTTP\/1.1 200 /);
  const second = await open(server.port);
  await new Promise((resolve) => second.once('close', resolve));
  expect(first.destroyed).toBe(false);
});

it('closes connections above the limit of a key, and a closed one frees its place', async () => {
  const [own, other] = ['own', 'other'].map((name) => {
    const caller: Caller = { name, role: 'user', cacheGroup: name, limits: name === 'own' ? { connections: 1 } : {} };
    return { digest: createHash('sha256').update(name).digest(), caller };
  });
  const keys = new ApiKeys(
    { users: [], admins: [] },
    [own, other].filter((entry) => entry !== undefined),
  );
  const server = await listen(gatewayOptions(new ScriptedPort(answering('yes')), { keys }), '127.0.0.1', 0);
  closing.push(() => server.drain({ waitMs: 0, timeoutMs: 0 }));
  const ask = async (socket: Socket, key: string): Promise<string> => {
    const answer = wholeAnswer(socket);
    socket.write(`GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${key}\r\n\r\n`);
    return answer;
  };
  const [first, second, third] = [await open(server.port), await open(server.port), await open(server.port)];
  expect(await ask(first, 'own')).toMatch(/^HTTP\/1.1 200 /);
  expect(await ask(first, 'own')).toMatch(/^HTTP\/1.1 200 /);
  expect(await ask(second, 'own')).toMatch(/^HTTP\/1.1 429 .*connection: close.*the limit connections of 1/is);
  // A connection of another key that takes this one counts too.
  expect(await ask(third, 'other')).toMatch(/^HTTP\/1.1 200 /);
  expect(await ask(third, 'own')).toMatch(/^HTTP\/1.1 429 /);
  first.destroy();
  await expect.poll(async () => ask(await open(server.port), 'own')).toMatch(/^HTTP\/1.1 200 /);
});

it('bodies in flight have a budget; one of unknown length counts as the longest', () => {
  const budget = new BodyBudget(100, 60);
  const of = (length?: string) =>
    new Request('http://localhost', { headers: length === undefined ? {} : { 'content-length': length } });
  const release = budget.reserve(of('40'));
  const longest = budget.reserve(of());
  expect(() => budget.reserve(of('1'))).toThrow('Cannot read request: bodies in flight have 100 bytes: retry later');
  release();
  budget.reserve(of('40'))();
  // A longer one is refused when it is read.
  expect(() => budget.reserve(of('1000'))).toThrow('bodies in flight');
  longest();
  budget.reserve(of('1000'));
});

it('a body of unknown length counts by its length once it is read', async () => {
  const { port, post } = gateway(() => [accepted]);
  const send = (count: number) =>
    Array.from({ length: count }, () => post('/v1/completions', { model: 'bytes', prompt: 'x' }));
  const atOnce = send(17);
  expect((await atOnce[16])?.status).toBe(503);
  await expect.poll(() => port.requests.length).toBe(16);
  // None of them has an answer yet.
  send(10);
  await expect.poll(() => port.requests.length).toBe(26);
});

it('ends the connection of a client that takes nothing', async () => {
  const why = new Promise<string>((resolve) => {
    const server = createServer((_, outgoing) => {
      const stream = new SseStream({ bufferBytesMax: 1 << 30, stalledMs: 20, onDisconnect: resolve });
      outgoing.writeHead(200);
      stream.writeTo(outgoing);
      stream.send({ text: 'x'.repeat(32 << 20) });
    }).listen(0, '127.0.0.1', async () => {
      const client = await open((server.address() as AddressInfo).port);
      client.pause();
      client.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n');
    });
    closing.push(() => server.close());
  });
  expect(await why).toBe('closed');
});

it('refuses a text that cannot fit before it is tokenized', async () => {
  let tokenized = 0;
  const encode = async (text: string): Promise<Int32Array> => {
    tokenized++;
    return new Int32Array(text.length);
  };
  const { post } = gateway(answering('yes'), { encode, bodyBytesMax: 100_000 });
  const long = 'x'.repeat(100 * 4 * 100);
  for (const [path, body] of [
    ['/v1/completions', { prompt: long }],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: long }] }],
  ] as const) {
    const response = await post(path, { model: 'bytes', ...body }, { 'content-type': 'application/json' });
    const { error } = (await response.json()) as { error: { message: string; code: string } };
    expect([response.status, error.code]).toEqual([400, 'context_length_exceeded']);
    expect(error.message).toMatch(
      /^Cannot fit request: the context is 100 tokens of at most \d+ bytes, the text has 4/,
    );
  }
  expect(tokenized).toBe(0);
});
