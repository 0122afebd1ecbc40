// Gateways behind a load balancer: each serves the files, batches and contexts of all, for the key that owns them.
import { expect, it, vi } from 'vitest';
import type { ClusterPort } from '../../../src/core/protocol/ports.ts';
import { createApp } from '../../../src/gateway/http/app.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { GatewayLinks } from '../../../src/runtime/processes/gateway-links.ts';
import { PeerSession } from '../../../src/runtime/processes/peer-session.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { type ForwarderAnnouncement, readForward, readForwarder } from '../../../src/runtime/wire/forward-messages.ts';
import { settled } from '../../runtime/bus/settled.ts';
import { accepted, finished, type Script, ScriptedPort, started, tokens } from '../scripted-port.ts';
import { gatewayOptions, noCluster } from '../world.ts';

const [keyA, keyB] = ['aaaaaaaa', 'bbbbbbbb'];
const answering: Script = () => [accepted, started(0), tokens([104]), finished('length')];
/** Pins every prefix. */
const pinning: ClusterPort = {
  ...noCluster,
  pin: (_, onState) => onState({ kind: 'pinned', tokens: 32, untilUs: 1e9 }, 0),
};

interface Things {
  readonly id: string;
  readonly status: string;
  readonly data: readonly Things[];
  readonly output_file_id: string;
  readonly error: { readonly message: string; readonly code: string };
  readonly has_more: boolean;
}

/** A gateway that is connected to the others of the hub. */
function start(bus: Bus, key: string, log: string[] = []) {
  const name = `gateway-${key[0]}`;
  const links = new GatewayLinks({ bus, name, incarnation: 1, log: (line) => void log.push(line) }, key);
  const keys = new ApiKeys({ users: ['one', 'two'], admins: [] });
  const options = { keys, peers: links, cluster: pinning, bodyBytesMax: 2_000_000 };
  const app = createApp(gatewayOptions(new ScriptedPort(answering), options));
  const raw = async (method: string, path: string, body?: unknown, apiKey = 'one') => {
    const content = body === undefined ? {} : { body: body instanceof FormData ? body : JSON.stringify(body) };
    return app.request(path, { method, headers: { authorization: `Bearer ${apiKey}` }, ...content });
  };
  const send = async (...given: Parameters<typeof raw>) => {
    const response = await raw(...given);
    return { status: response.status, body: (await response.json()) as Things };
  };
  const upload = async (text: string): Promise<string> => {
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new File([text], 'jobs.jsonl'));
    return (await send('POST', '/v1/files', form)).body.id;
  };
  return { links, raw, send, upload };
}

async function two() {
  const hub = new MemoryHub();
  const [a, b] = [start(hub.connect(), keyA), start(hub.connect(), keyB)];
  while (a.links.keys().length + b.links.keys().length < 2) await settled();
  const close = (): void => {
    a.links.close();
    b.links.close();
  };
  return { hub, a, b, close };
}

const line = JSON.stringify({
  ...{ custom_id: 'job', method: 'POST', url: '/v1/completions' },
  body: { model: 'bytes', prompt: [1], max_tokens: 1 },
});

it('a batch of a file of another gateway runs there, and every gateway shows it and its output', async () => {
  const { a, b, close } = await two();
  const file = await a.upload(line);
  expect(file).toMatch(/^file-aaaaaaaa_/);
  const request = { input_file_id: file, endpoint: '/v1/completions', completion_window: '24h' };
  const { id } = (await b.send('POST', '/v1/batches', request)).body;
  expect(id).toMatch(/^batch_aaaaaaaa_/);
  const read = async () => (await b.send('GET', `/v1/batches/${id}`)).body;
  while ((await read()).status !== 'completed') await settled();
  const output = await b.raw('GET', `/v1/files/${(await read()).output_file_id}/content`);
  expect(await output.text()).toContain('"custom_id":"job"');
  expect((await b.send('POST', `/v1/batches/${id}/cancel`)).body.status).toBe('completed');
  close();
});

it('lists are those of all gateways, in one order, and pages continue at another gateway', async () => {
  const { a, b, close } = await two();
  for (const gateway of [a, b, a]) {
    const input_file_id = await gateway.upload(line);
    await gateway.send('POST', '/v1/batches', { input_file_id, endpoint: '/v1/completions', completion_window: '24h' });
  }
  await b.send('POST', '/v1/contexts', { model: 'bytes', prompt: [1, 2, 3] });
  for (const path of ['/v1/files', '/v1/batches', '/v1/contexts']) {
    const [atA, atB] = await Promise.all([a.send('GET', path), b.send('GET', path)]);
    const idsOf = ({ body }: typeof atA) => body.data.map(({ id }) => id);
    expect(idsOf(atA), path).toEqual(idsOf(atB));
    expect((await a.send('GET', path, undefined, 'two')).body.data, path).toEqual([]);
  }
  const first = (await a.send('GET', '/v1/batches?limit=2')).body;
  const second = (await b.send('GET', `/v1/batches?limit=2&after=${first.data[1]?.id}`)).body;
  const all = (await a.send('GET', '/v1/batches')).body.data.map(({ id }) => id);
  expect([...first.data, ...second.data].map(({ id }) => id)).toEqual(all);
  expect([all.length, first.has_more, second.has_more]).toEqual([3, true, false]);
  close();
});

it('a context is renewed and released at any gateway', async () => {
  const { a, b, close } = await two();
  const { id } = (await a.send('POST', '/v1/contexts', { model: 'bytes', prompt: [1, 2, 3], ttl: 60 })).body;
  const path = `/v1/contexts/${id}`;
  expect(await b.send('POST', path, { ttl: 600 })).toMatchObject({ status: 200, body: { ttl: 600 } });
  expect(await b.send('POST', path, { ttl: 'long' })).toMatchObject({ status: 400 });
  expect(await b.send('DELETE', path)).toMatchObject({ body: { deleted: true } });
  expect(await a.send('GET', path)).toMatchObject({ status: 404 });
  close();
});

it('another key reaches nothing of a tenant through another gateway', async () => {
  const { a, b, close } = await two();
  const file = await a.upload(line);
  const { id: context } = (await a.send('POST', '/v1/contexts', { model: 'bytes', prompt: [1] })).body;
  const requests = [
    ['GET', `/v1/files/${file}`],
    ['GET', `/v1/files/${file}/content`],
    ['DELETE', `/v1/files/${file}`],
    ['POST', '/v1/batches', { input_file_id: file, endpoint: '/v1/completions', completion_window: '24h' }],
    ['GET', `/v1/contexts/${context}`],
    ['POST', `/v1/contexts/${context}`, { ttl: 5 }],
    ['DELETE', `/v1/contexts/${context}`],
  ] as const;
  for (const [method, path, body] of requests) expect((await b.send(method, path, body, 'two')).status, path).toBe(404);
  expect((await b.send('GET', `/v1/files/${file}`, undefined, 'unknown')).status).toBe(401);
  expect((await b.send('GET', `/v1/files/${file}`)).status).toBe(200);
  close();
});

it('long contents arrive in pieces, and a response that is read no further is dropped', async () => {
  const { a, b, close } = await two();
  const text = Array.from({ length: 100_000 }, (_, i) => `${i} line`).join('\n');
  const file = await a.upload(text);
  const path = `/v1/files/${file}/content`;
  expect(await (await b.raw('GET', path)).text()).toBe(text);
  // More cancelled responses than a gateway answers at once.
  for (let i = 0; i < 40; i++) {
    const reader = (await b.raw('GET', path)).body?.getReader();
    expect((await reader?.read())?.value?.length).toBe(2 ** 18);
    await reader?.cancel();
    await (await b.raw('GET', path)).body?.cancel();
  }
  expect((await b.raw('GET', path)).status).toBe(200);
  close();
});

it('slow downloads of one tenant leave the calls of the others', async () => {
  const { a, b, close } = await two();
  const path = `/v1/files/${await a.upload('x'.repeat(600_000))}/content`;
  const held = [];
  for (let i = 0; i < 32; i++) held.push(await b.raw('GET', path));
  expect(held.every(({ status }) => status === 200)).toBe(true);
  expect((await b.send('GET', '/v1/files')).body.error.message).toContain('32 of them of this API key');
  expect((await b.send('GET', '/v1/files', undefined, 'two')).status).toBe(200);
  await Promise.all(held.map(({ body }) => body?.cancel()));
  expect((await b.send('GET', '/v1/files')).status).toBe(200);
  close();
});

it('a batch of which the answer comes too late for the other gateway does not run, or is not created', async () => {
  const { hub, a, close } = await two();
  const lines = Array.from({ length: 300 }, (_, i) => line.replace('job', `job${i}`));
  const input = { input_file_id: await a.upload(lines.join('\n')), endpoint: '/v1/completions' };
  const keys = new ApiKeys({ users: ['one', 'two'], admins: [] });
  const owner = keys.ownerOf(keys.callerOf('Bearer one').name);
  const body = new TextEncoder().encode(JSON.stringify({ ...input, completion_window: '24h' }));
  const about = { kind: 'request', method: 'POST', path: '/v1/batches', owner, requestId: 'r', body } as const;
  const kinds: string[] = [];
  const own = { bus: hub.connect(), name: 'hasty', incarnation: 1, log: () => {} };
  const hasty: PeerSession<ForwarderAnnouncement> = new PeerSession(own, 'forwarder', {
    readAnnouncement: readForwarder,
    announcement: () => ({ key: 'cccccccc' }),
    onJoined: (peer) => {
      if (peer.member.key === keyA) hasty.send(peer, encode({ ...about, call: 1 }));
    },
    onLost: () => {},
    onMessage: (peer, bytes) => {
      const { kind, call } = readForward(bytes);
      if (kind === 'request') return;
      kinds.push(kind);
      hasty.send(peer, encode({ kind: 'cancel', call }));
      hasty.send(peer, encode({ ...about, call: 2 }));
      hasty.send(peer, encode({ kind: 'cancel', call: 2 }));
    },
  });
  hasty.start();
  while (kinds.length === 0) await settled();
  for (let i = 0; i < 5; i++) await settled();
  hasty.close();
  while (a.links.keys().includes('cccccccc')) await settled();
  const statuses = async () => (await a.send('GET', '/v1/batches')).body.data.map(({ status }) => status);
  for (let i = 0; i < 500 && !(await statuses()).some((each) => /ed$/.test(each)); i++) await settled();
  expect([await statuses(), kinds]).toEqual([['cancelled'], ['response']]);
  close();
});

it('503 names a gateway that is not in the cluster, has left it, or does not answer', async () => {
  const { hub, a, b, close } = await two();
  const id = `file-cccccccc_${'0'.repeat(32)}`;
  const of = async (path: string) => {
    const { status, body } = await b.send('GET', path);
    return [status, body.error.message, body.error.code];
  };
  const because = (why: string) => [503, `Cannot serve request: ${why}`, 'gateway_unreachable'];
  expect(await of(`/v1/files/${id}`)).toEqual(because('gateway cccccccc is not in the cluster'));
  // It announces itself and answers nothing.
  const silent = hub.connect();
  const announcement = { version: 19, name: 'gateway-c', incarnation: 1, number: 1, key: 'cccccccc' };
  silent.publish('beat.forwarder', encode(announcement));
  while (!b.links.keys().includes('cccccccc')) await settled();
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const waiting = [of(`/v1/files/${id}`), of('/v1/files')];
    await settled();
    vi.advanceTimersByTime(10_000);
    const silentWhy = because('gateway gateway-c (cccccccc) does not answer for 10 s');
    expect(await Promise.all(waiting)).toEqual([silentWhy, silentWhy]);
  } finally {
    vi.useRealTimers();
  }
  silent.publish('leave.forwarder', encode({ name: 'gateway-c', incarnation: 1 }));
  const file = await a.upload(line);
  a.links.close();
  while (b.links.keys().length > 0) await settled();
  const left = 'gateway gateway-a (aaaaaaaa) is not in the cluster any more: it has left';
  expect(await of(`/v1/files/${file}`)).toEqual(because(left));
  // What the others have is still listed.
  expect((await b.send('GET', '/v1/files')).body.data).toEqual([]);
  close();
});

it('a path without a route is not forwarded', async () => {
  const { a, b, close } = await two();
  const file = await a.upload(line);
  for (const path of [`/v1/files/x${file}`, `/v1/files/${file}/${'x'.repeat(600)}`, `/v1/files/${file}/other`])
    expect((await b.send('GET', path)).status, path).toBe(404);
  expect((await b.send('PUT', `/v1/files/${file}`)).status).toBe(405);
  // The router decodes paths; a message with one as it was spelled would end the session of the gateways.
  expect((await b.send('GET', `/v1/%66iles/${file}`)).status).toBe(200);
  expect((await b.send('GET', `/v1/files/${file}?x=%22${'x'.repeat(5000)}`)).status).toBe(200);
  close();
});

it('a gateway with the key of another one is refused', async () => {
  const hub = new MemoryHub();
  const log: string[] = [];
  const gateways = [start(hub.connect(), keyA, log), start(hub.connect(), keyA)];
  gateways[1].links.close();
  const copy = new GatewayLinks({ bus: hub.connect(), name: 'copy', incarnation: 1, log: () => {} }, keyA);
  while (!log.some((each) => each.startsWith('Refused copy'))) await settled();
  expect(log.at(-1)).toBe(`Refused copy: it has the key ${keyA} of this gateway: its data folder is a copy`);
  expect(gateways[0].links.keys()).toEqual([]);
  copy.close();
  gateways[0].links.close();
});
