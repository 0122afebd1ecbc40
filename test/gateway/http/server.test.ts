// The gateway on a socket: the cases of HTTP itself, and shutdown.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { get } from 'node:https';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { pino } from 'pino';
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { GatewayOptions } from '../../../src/gateway/http/app.ts';
import { type Gateway, listen } from '../../../src/gateway/http/server.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { accepted, type Script, ScriptedPort, started, tokens } from '../scripted-port.ts';
import { answering, gatewayOptions } from '../world.ts';

const open: Gateway[] = [];
const atOnce = { waitMs: 0, timeoutMs: 0 };
afterEach(async () => {
  await Promise.all(open.splice(0).map((gateway) => gateway.drain(atOnce)));
});

async function serve(script: Script, more: Partial<GatewayOptions> = {}) {
  const port = new ScriptedPort(script);
  const gateway = await listen(gatewayOptions(port, more), '127.0.0.1', 0);
  open.push(gateway);
  return { gateway, port };
}

/** Sends bytes and resolves with the response bytes, up to the close or a match of `enough`. */
function exchange(gateway: Gateway, bytes: string, enough?: RegExp): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(gateway.port, gateway.host, () => socket.write(bytes));
    let received = '';
    socket.on('data', (chunk) => {
      received += chunk.toString();
      if (enough?.test(received)) socket.destroy();
    });
    socket.on('error', () => {});
    socket.on('close', () => resolve(received));
  });
}

const body = JSON.stringify({ model: 'bytes', prompt: 'x' });
const head = 'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nHost: localhost\r\n';
const whole = `${head}Content-Length: ${body.length}\r\n\r\n${body}`;
const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;

describe('HTTP', () => {
  it('accepts chunked bodies', async () => {
    const { gateway } = await serve(answering('yes'));
    const sent = `${head}Transfer-Encoding: chunked\r\n\r\n${chunk(body.slice(0, 9))}${chunk(body.slice(9))}0\r\n\r\n`;
    expect(await exchange(gateway, sent, /"usage"/)).toMatch(/^HTTP\/1.1 200 .*"text":"yes"/s);
  });

  it('waits for 100-continue, and answers pipelined requests in order', async () => {
    const { gateway } = await serve(answering('yes'));
    const expecting = `${head}Expect: 100-continue\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    expect(await exchange(gateway, expecting, /"usage"/)).toMatch(/^HTTP\/1.1 100 .*HTTP\/1.1 200 .*"text":"yes"/s);
    const both = await exchange(gateway, `GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n${whole}`, /"usage"/);
    expect(both).toMatch(/"status":"ok".*"text":"yes"/s);
  });

  it('cancels pipelined requests when their client disconnects', async () => {
    const { gateway, port } = await serve(() =>
      [accepted, started(0), tokens([97]), tokens([98])].concat(Array(1e4).fill(tokens([99]))),
    );
    const socket = connect(gateway.port, gateway.host, () => socket.write(whole + whole));
    socket.on('error', () => {});
    while (port.requests.length < 2) await new Promise((resolve) => setImmediate(resolve));
    socket.destroy();
    while (port.cancelled.length < 2) await new Promise((resolve) => setImmediate(resolve));
    expect(port.cancelled).toEqual(port.requests.map(({ id }) => id));
  });

  it('refuses a body over the limit before it arrives, and closes', async () => {
    const { gateway } = await serve(answering('x'));
    const announced = await exchange(gateway, `${head}Content-Length: 99999999\r\n\r\n{`);
    expect(announced).toMatch(/^HTTP\/1.1 413 .*connection: close.*body_too_large/is);
    const chunks = chunk(' '.repeat(6000)).repeat(3);
    expect(await exchange(gateway, `${head}Transfer-Encoding: chunked\r\n\r\n${chunks}`)).toMatch(/^HTTP\/1.1 413 /);
  });

  it.each([
    ['no HTTP at all', '\x16\x03\x01\r\n\r\n', 400],
    ['two lengths', `${head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}`, 400],
    ['an invalid host', 'GET /health HTTP/1.1\r\nHost: a b/c\r\n\r\n', 400],
    ['too many headers', `GET /health HTTP/1.1\r\nHost: localhost\r\nA: ${'a'.repeat(20_000)}\r\n\r\n`, 431],
    ['a wrong method', 'PUT /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n', 405],
    ['OPTIONS without CORS', 'OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n', 405],
  ])('%s: an error of the OpenAI shape with a request id', async (_name, bytes, status) => {
    const { gateway } = await serve(answering('x'));
    const answer = await exchange(gateway, bytes, /\}\}$/);
    expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
    expect(answer).toMatch(/x-request-id: req-/);
    expect(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n')))).toMatchObject({
      error: { type: 'invalid_request_error', param: null },
    });
  });

  it('a server without keys on loopback serves no request that a web page can send', async () => {
    const { gateway } = await serve(answering('x'));
    const send = async (host: string, type: string, at = gateway) => {
      const type_ = type === '' ? '' : `Content-Type: ${type}\r\n`;
      const sent = `POST /v1/completions HTTP/1.1\r\nHost: ${host}\r\n${type_}Content-Length: ${body.length}\r\n\r\n${body}`;
      return Number((await exchange(at, sent, /\}\}?$/)).slice(9, 12));
    };
    for (const host of ['localhost:8000', '127.0.0.1', '[::1]:8000'])
      expect(await send(host, 'application/json; charset=utf-8')).toBe(200);
    expect(await send('evil.example:8000', 'application/json')).toBe(403);
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', ''])
      expect(await send('localhost', type)).toBe(415);
    const keys = new ApiKeys({ users: ['k'], admins: [] });
    const { gateway: keyed } = await serve(answering('x'), { keys });
    expect(await send('name.example', 'text/plain', keyed)).toBe(401);
  });

  it('serves HTTP/1.0 without a host', async () => {
    const { gateway } = await serve(answering('x'));
    expect(await exchange(gateway, 'GET /health HTTP/1.0\r\n\r\n')).toMatch(/^HTTP\/1.1 200 .*"ok"/s);
  });

  it('streams whole chunks, and none to HTTP/1.0', async () => {
    const { gateway } = await serve(answering('é'));
    const events = /^data: .*"text":"é".*data: \[DONE\]\n\n$/s;
    const streamed = JSON.stringify({ model: 'bytes', prompt: 'x', stream: true });
    const post = (version: string): string =>
      `${head.replace('HTTP/1.1', version)}Content-Length: ${streamed.length}\r\n\r\n${streamed}`;
    const received = await exchange(gateway, post('HTTP/1.1'), /\r\n0\r\n\r\n$/);
    const chunks: string[] = [];
    for (let rest = Buffer.from(received.slice(received.indexOf('\r\n\r\n') + 4)); rest.length > 0; ) {
      const at = rest.indexOf('\r\n') + 2;
      const end = at + Number.parseInt(rest.toString(), 16);
      expect(rest.subarray(end, end + 2).toString()).toBe('\r\n');
      chunks.push(rest.subarray(at, end).toString());
      rest = rest.subarray(end + 2);
    }
    expect(chunks.join('')).toMatch(events);
    expect(chunks.indexOf('')).toBe(chunks.length - 1);
    const old = await exchange(gateway, post('HTTP/1.0'));
    expect(old.split('\r\n\r\n')[1]).toMatch(events);
  });

  it('sends the head of a stream whose first event is late', async () => {
    const { gateway } = await serve(() => [accepted]);
    const streamed = JSON.stringify({ model: 'bytes', prompt: 'x', stream: true });
    const sent = `${head}Content-Length: ${streamed.length}\r\n\r\n${streamed}`;
    expect(await exchange(gateway, sent, /\r\n\r\n/)).toMatch(/^HTTP\/1.1 200 .*text\/event-stream/s);
  });

  it('names a port that is in use', async () => {
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
    const { port } = taken.address() as AddressInfo;
    const options = gatewayOptions(new ScriptedPort(answering('x')));
    await expect(listen(options, '127.0.0.1', port)).rejects.toThrow(`Cannot listen on 127.0.0.1:${port}`);
    taken.close();
  });
});

describe('HTTPS', () => {
  const hasOpenssl = spawnSync('openssl', ['version']).status === 0;
  const certificate = (folder: string, name: string) => {
    const [cert, key] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
    const subject = ['-subj', `/CN=${name}`, '-days', '2', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
    const made = spawnSync('openssl', ['req', '-x509', '-nodes', ...subject, '-keyout', key, '-out', cert]);
    expect(made.status).toBe(0);
    return { cert, key };
  };
  const nameServed = (port: number) =>
    new Promise<string>((resolve, reject) => {
      const socket = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false }, () => {
        resolve(String(socket.getPeerCertificate().subject.CN));
        socket.destroy();
      });
      socket.on('error', reject);
    });

  it.skipIf(!hasOpenssl && process.env.CI === undefined)('serves a certificate, and its replacement', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-tls-'));
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    try {
      const tls = certificate(folder, 'first');
      const { gateway } = await serve(answering('yes'), { tls });
      expect(await nameServed(gateway.port)).toBe('first');
      const text = await new Promise<string>((resolve, reject) => {
        const at = { port: gateway.port, host: '127.0.0.1', path: '/health', rejectUnauthorized: false };
        get(at, (incoming) => incoming.setEncoding('utf8').on('data', resolve)).on('error', reject);
      });
      expect(text).toContain('"ok"');
      writeFileSync(tls.cert, 'no certificate');
      vi.advanceTimersByTime(1000);
      expect(await nameServed(gateway.port)).toBe('first');
      certificate(folder, 'second');
      vi.advanceTimersByTime(1000);
      expect(await nameServed(gateway.port)).toBe('second');
      const wrong = { cert: tls.cert, key: join(folder, 'none.pem') };
      await expect(serve(answering('x'), { tls: wrong })).rejects.toThrow(/none\.pem: ENOENT/);
    } finally {
      vi.useRealTimers();
      rmSync(folder, { recursive: true });
    }
  });
});

describe('CORS', () => {
  const get = (gateway: Gateway, origin: string) =>
    fetch(`http://127.0.0.1:${gateway.port}/health`, { headers: { origin } });

  it.each([
    [[], null, null],
    [['http://a'], 'http://a', null],
    [['http://a', '*'], '*', '*'],
  ])('origins %j', async (corsOrigins, forA, forB) => {
    const { gateway } = await serve(answering('x'), { corsOrigins });
    const [a, b] = [await get(gateway, 'http://a'), await get(gateway, 'http://b')];
    expect(a.headers.get('access-control-allow-origin')).toBe(forA);
    expect(b.headers.get('access-control-allow-origin')).toBe(forB);
    expect(a.headers.get('access-control-expose-headers')).toBe(forA && 'x-request-id,retry-after');
  });
});

describe('draining', () => {
  it('ends once all responses are sent, despite idle and kept-alive connections', async () => {
    const { gateway } = await serve(answering('yes'));
    const closed: Promise<string>[] = [exchange(gateway, ''), exchange(gateway, whole)];
    await exchange(gateway, whole, /"usage"/);
    // The grace period is longer than the timeout of the test.
    await gateway.drain({ waitMs: 0, timeoutMs: 1_000_000 });
    const answers = await Promise.all(closed);
    expect(answers[0]).toBe('');
    expect(answers[1]).toMatch(/"text":"yes"/);
  });

  it('ends requests that exceed the time-out with an error and a log line', async () => {
    const lines: string[] = [];
    const logger = pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) });
    // The script never finishes.
    const { gateway, port } = await serve(() => [accepted, started(0), tokens([97]), tokens([97])], { logger });
    const streaming = JSON.stringify({ model: 'bytes', prompt: 'x', stream: true });
    const cut = exchange(gateway, `${head}Content-Length: ${streaming.length}\r\n\r\n${streaming}`);
    const failed = exchange(gateway, whole);
    while (port.requests.length < 2) await new Promise((resolve) => setImmediate(resolve));
    await gateway.drain(atOnce);
    expect(await cut).toMatch(/data: {"error":{"message":"Cannot finish request: the server stops.*"shutting_down"/);
    expect(await cut).not.toContain('[DONE]');
    expect(await failed).toMatch(/^HTTP\/1.1 503 .*"shutting_down"/s);
    expect(lines.map((line) => JSON.parse(line))).toMatchObject([{ requests: 2 }]);
  });

  it('serves new requests during the wait, while /ready is 503, and closes their connections', async () => {
    const { gateway } = await serve(answering('yes'));
    const ready = `GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n`;
    expect(await exchange(gateway, ready, /"ready"/)).toContain('200');
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const drained = gateway.drain({ waitMs: 5000, timeoutMs: 1_000_000 });
    const [unready, answer] = await Promise.all([exchange(gateway, ready), exchange(gateway, whole)]);
    vi.advanceTimersByTime(5000);
    vi.useRealTimers();
    expect(unready).toMatch(/^HTTP\/1.1 503 .*connection: close.*"draining"/is);
    expect(answer).toMatch(/^HTTP\/1.1 200 .*connection: close.*"text":"yes"/is);
    await drained;
    await expect(fetch(`http://127.0.0.1:${gateway.port}/ready`)).rejects.toThrow();
  });
});
