// The request queue under a burst: requests over the bound are refused at once, and the others are admitted one by one.
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { RequestQueue } from '../../../src/gateway/http/request-queue.ts';
import { request } from '../../core/instance-world.ts';
import { ScriptedPort } from '../scripted-port.ts';

/** A port that accepts `capacity` requests, which never end. */
class BoundedPort extends ScriptedPort {
  readonly #capacity: number;

  get accepted(): number {
    return this.requests.length;
  }

  constructor(capacity: number) {
    super(() => []);
    this.#capacity = capacity;
  }

  override overload(ahead: number) {
    if (this.accepted + ahead < this.#capacity) return undefined;
    return {
      kind: 'failed',
      code: 'KV_OVERLOADED',
      message: 'Cannot admit request: full',
      retryAfterMs: 2500,
    } as const;
  }
}

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

async function open(capacity: number) {
  const port = new BoundedPort(capacity);
  const refused: string[] = [];
  const isAuthorised = ({ authorization }: IncomingHttpHeaders): boolean => authorization === 'Bearer known';
  const queue = new RequestQueue({ port, isAuthorised, onRefused: (id) => refused.push(id) });
  const observedPort = queue.observed(port);
  const server = createServer(
    queue.wrap((incoming, outgoing) => {
      if (incoming.method === 'POST') observedPort.submit(request('any', [1]), () => {});
      incoming.resume();
      outgoing.end('served');
    }),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  closing.push(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const post = (headers: Record<string, string> = { authorization: 'Bearer known' }) =>
    fetch(`${url}/v1/completions`, { method: 'POST', body: 'x'.repeat(5000), headers });
  return { url, post, port, refused };
}

it('serves a burst up to the capacity and refuses the rest unread', async () => {
  const { post, port, refused } = await open(6);
  const answers = await Promise.all(Array.from({ length: 40 }, () => post()));
  const statuses = answers.map(({ status }) => status);
  expect(port.accepted).toBe(6);
  expect(statuses.filter((status) => status === 429)).toHaveLength(40 - port.accepted);
  expect(refused).toHaveLength(40 - port.accepted);
  const refusal = answers.find(({ status }) => status === 429);
  expect(refusal?.headers.get('retry-after')).toBe('3');
  expect(refused).toContain(refusal?.headers.get('x-request-id'));
  expect(await refusal?.json()).toMatchObject({ error: { code: 'kv_overloaded', type: 'rate_limit_error' } });
});

it('leaves unauthorised callers, browsers and other paths to the app', async () => {
  const { url, post } = await open(0);
  expect((await post({})).status).toBe(200);
  expect((await post({ authorization: 'Bearer known', origin: 'http://a.example' })).status).toBe(200);
  expect((await fetch(`${url}/health`)).status).toBe(200);
  expect((await post()).status).toBe(429);
});
