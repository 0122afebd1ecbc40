// A gateway that takes the blocks of an engine from another one: over HTTP, and from peers that lie, hang or are down.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { getRequestListener } from '@hono/node-server';
import { afterEach, describe, expect, it } from 'vitest';
import type { EngineKvEvent } from '../../../src/core/fleet/engine-kv-event.ts';
import { FleetCluster } from '../../../src/runtime/fleet/fleet-cluster.ts';
import { GatewaySnapshots } from '../../../src/runtime/fleet/gateway-snapshots.ts';
import { encodeMsgpack } from '../../../src/runtime/fleet/msgpack.ts';
import { request } from '../../core/instance-world.ts';
import { admitAll } from '../threads/instances.ts';
import { FakeEngine } from './fake-engine.ts';

const opened: { close(): unknown }[] = [];
const logged: string[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((each) => each.close()));
  logged.length = 0;
});
const log = (line: string): void => void logged.push(line);
const key = 'key-of-the-gateways';

async function serverOf(answer: (request: Request) => Response | Promise<Response>): Promise<string> {
  const server = createServer(getRequestListener(answer, { overrideGlobalObjects: false }));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  opened.push({
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

const cachedAt = (cluster: FleetCluster): readonly number[] => cluster.instances().map(({ pages }) => pages.cached);

async function fleetOf(engine: FakeEngine, peers: readonly string[]): Promise<FleetCluster> {
  const cluster = new FleetCluster({
    ...{ engines: [{ url: engine.url }], admission: admitAll, queueMax: 64, log, gateways: { key, peers } },
  });
  opened.push(cluster);
  await cluster.settled();
  return cluster;
}

it('has all blocks of an engine that has forgotten its first events, and follows it from there', async () => {
  const engine = await FakeEngine.start();
  opened.push({ close: () => engine.kill() });
  const first = await fleetOf(engine, []);
  const run = (id: string, prompt: readonly number[], salt: string): Promise<unknown> =>
    new Promise((resolve) => {
      first.submit({ ...request(id, [...prompt]), maxTokens: 4, salt }, ({ kind }) => {
        if (kind === 'finished') resolve(undefined);
      });
    });
  await until(() => engine.hasSubscriber);
  for (const [i, salt] of ['', 'tenant', ''].entries())
    await run(
      `${i}`,
      Array.from({ length: 100 }, (_, at) => i * 1000 + at),
      salt,
    );
  await until(() => cachedAt(first)[0] === engine.blocks);
  engine.kept = 1;
  const listing = first.blockListing;
  const url = await serverOf((asked) => listing?.answer(asked) ?? Response.error());
  const second = await fleetOf(engine, [`http://127.0.0.1:1`, url]);
  await until(() => cachedAt(second)[0] === engine.blocks);
  expect(logged.some((line) => line.includes(`continue after ${engine.blocks} blocks of another gateway`))).toBe(true);
  engine.evict(2);
  await until(() => [first, second].every((each) => cachedAt(each)[0] === engine.blocks));
  expect((await fetch(`${url}/fleet/blocks?engine=${engine.url}`)).status).toBe(401);
});

describe('GatewaySnapshots', () => {
  const event = (hash: number): EngineKvEvent => ({
    ...{ kind: 'stored', hashes: [hash], parent: undefined, tokens: Int32Array.from({ length: 16 }, () => hash) },
    ...{ blockTokens: 16, medium: 'host', extraKeys: ['salt'] },
  });
  const frame = (bytes: Buffer): Buffer => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    return Buffer.concat([length, bytes]);
  };
  const asked = { engine: 'http://e:1/', rank: 0, signal: new AbortController().signal };
  const ask = (peers: readonly string[], fits = true, blocksMax = 100) =>
    new GatewaySnapshots({ key, peers }, log).request({ ...asked, fits: () => fits, blocksMax });

  it('lists events as they were, to the holder of the key alone, and a known engine alone', async () => {
    const events = Array.from({ length: 20 }, (_, i) => event(i));
    const own = new GatewaySnapshots({ key, peers: [] }, log);
    const url = await serverOf((asked) =>
      own.serve(asked, (engine, rank) =>
        engine === 'http://e:1/' && rank === 0 ? { next: 8, atS: 7.5, events } : undefined,
      ),
    );
    expect(await ask([url])).toEqual({ next: 8, atS: 7.5, events });
    expect(await ask([url], false)).toBeUndefined();
    expect(logged.at(-1)).toContain('it is at batch 8');
    expect(await ask([url], true, 19)).toBeUndefined();
    expect(logged.at(-1)).toContain('more than 19 blocks');
    const statusOf = async (query: string, authorization: string): Promise<number> =>
      (await fetch(`${url}/fleet/blocks?${query}`, { headers: { authorization } })).status;
    expect(await statusOf('engine=http://e:1/&rank=0', `Bearer ${key}!`)).toBe(401);
    expect(await statusOf('engine=http://e:1/&rank=1', `Bearer ${key}`)).toBe(404);
    expect(await statusOf('rank=x', `bearer ${key}`)).toBe(404);
  });

  it('gives up after its time, whether or not other gateways are left', async () => {
    const calls: string[] = [];
    const url = await serverOf(({ url: called }) => {
      calls.push(called);
      return new Promise<Response>(() => {});
    });
    const snapshots = new GatewaySnapshots({ key, peers: [url, `${url}/2`] }, log, { eachMs: 60_000, allMs: 100 });
    const request = { ...asked, fits: () => true, blocksMax: 1 };
    const ends = await Promise.all([snapshots.request(request), snapshots.request(request)]);
    expect([ends, calls.length]).toEqual([[undefined, undefined], 1]);
    expect(logged.at(-1)).toContain('learned anew');
  });

  it('sends four snapshots at once at most, and frees those that are not read on', async () => {
    const own = new GatewaySnapshots({ key, peers: [] }, log);
    const endless = function* (): Generator<EngineKvEvent> {
      for (;;) yield event(1);
    };
    const asked = new Request('http://gateway/fleet/blocks', { headers: { authorization: `Bearer ${key}` } });
    const responses = [1, 2, 3, 4].map(() => own.serve(asked, () => ({ next: 1, atS: 1, events: endless() })));
    const one = (): Response => own.serve(asked, () => ({ next: 1, atS: 1, events: [] }));
    expect([...responses.map(({ status }) => status), one().status]).toEqual([200, 200, 200, 200, 503]);
    await responses[2].body?.cancel();
    expect(one().status).toBe(200);
  });

  it.each([
    ['an error', [], 500, 'it answers 500'],
    ['no answer at all', [], 200, 'ends early'],
    ['no end', [frame(encodeMsgpack([1, 8, 7]))], 200, 'ends early'],
    ['another version', [frame(encodeMsgpack([2, 8, 7]))], 200, 'not of version 1'],
    ['no position', [frame(encodeMsgpack([1, -8, 7]))], 200, 'has no position'],
    ['an endless frame', [Buffer.of(255, 255, 255, 255)], 200, 'a frame of its answer exceeds'],
    ['something else', [frame(Buffer.from('<html>'))], 200, 'Cannot decode MessagePack'],
    [
      'events of no form',
      [frame(encodeMsgpack([1, 8, 7])), frame(encodeMsgpack([7, [1]]))],
      200,
      'Cannot read KV events',
    ],
  ])('passes over a gateway that sends %s', async (_, frames, status, why) => {
    const lying = await serverOf(() => new Response(Buffer.concat(frames), { status }));
    expect(await ask([lying])).toBeUndefined();
    expect(logged).toEqual([expect.stringContaining(why)]);
  });
});
