// Limits of keys over several gateways: each charges what the others have charged, once, and counts what is open there.
import { EventEmitter } from 'node:events';
import { afterEach, expect, it, vi } from 'vitest';
import type { GatewayPeers } from '../../../src/core/protocol/ports.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { CallerConnections, CallerUsage, OpenElsewhere } from '../../../src/gateway/keys/caller-usage.ts';
import { parseKeys } from '../../../src/gateway/keys/keys-file.ts';
import { ChargesElsewhere, shareUsage } from '../../../src/gateway/keys/shared-usage.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { GatewayLinks } from '../../../src/runtime/processes/gateway-links.ts';
import { settled } from '../../runtime/bus/settled.ts';

afterEach(() => void vi.useRealTimers());

const keysFile = (name: string) => `
keys:
  - { name: ${name}, sha256: ${'ab'.repeat(32)}, limits: { requests_per_minute: 6, tokens_per_minute: 600 } }
  - { name: free, sha256: ${'cd'.repeat(32)} }
  - { name: few-${name}, sha256: ${'ef'.repeat(32)}, limits: { concurrent_requests: 3, queued_requests: 2, connections: 2 } }
`;

/** A gateway whose file names the limited key so. */
function gateway(peers: Pick<GatewayPeers, 'shareUsage'>, name: string, clock: { ms: number }) {
  const keys = new ApiKeys({ users: [], admins: [] }, parseKeys(keysFile(name)));
  const elsewhere = new OpenElsewhere();
  const usage = new CallerUsage({ nowMs: () => clock.ms, queueMax: 100, sharesQueue: () => true, elsewhere });
  const connections = new CallerConnections(() => undefined, elsewhere);
  shareUsage(peers, keys, { usage, connections, elsewhere });
  const [limited, free, few] = [keys.callerNamed(name), keys.callerNamed('free'), keys.callerNamed(`few-${name}`)];
  return {
    usage,
    connections,
    limited,
    free,
    few,
    serve: (tokens: number) => usage.begin(limited, 1, tokens).ended(0),
  };
}

/** Three gateways of one cluster. */
async function cluster() {
  vi.useFakeTimers({ toFake: ['setTimeout', 'setInterval', 'performance'] });
  const hub = new MemoryHub();
  const log = (line: string): void => expect.unreachable(line);
  const links = ['aaaaaaaa', 'bbbbbbbb', 'cccccccc'].map(
    (key) => new GatewayLinks({ bus: hub.connect(), name: `gateway-${key}`, incarnation: 1, log }, key),
  );
  const clock = { ms: 0 };
  const [a, b, c] = links.map((each, i) => gateway(each, `team-${i}`, clock));
  if (a === undefined || b === undefined || c === undefined) throw new Error('a gateway is missing');
  const pass = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 500) {
      vi.advanceTimersByTime(500);
      await settled();
    }
  };
  await pass(2000);
  return { a, b, c, links, clock, pass };
}

it('counts the requests and connections of a key at every gateway, and no more those of a gateway that is lost', async () => {
  const { a, b, c, links, pass } = await cluster();
  const [first] = [a.usage.begin(a.few, 1, 5), a.usage.begin(a.free, 1, 5)];
  const second = b.usage.begin(b.few, 1, 5);
  first.started();
  b.connections.use(b.few, new EventEmitter());
  await pass(1000);
  // One request here has started, and one waits.
  const third = c.usage.begin(c.few, 1, 5);
  await pass(1000);
  for (const each of [a, b, c]) expect(() => each.usage.check(each.few)).toThrow('concurrent_requests of 3');
  first.ended(3);
  await pass(1000);
  for (const each of [a, b, c]) expect(() => each.usage.check(each.few)).toThrow('queued_requests of 2');
  c.connections.use(c.few, new EventEmitter());
  await pass(1000);
  expect(() => a.connections.use(a.few, new EventEmitter())).toThrow('connections of 2');
  for (const each of [a, b, c]) each.usage.check(each.free);
  // It reports nothing any more: its requests and connections have ended with it.
  links[1]?.close();
  await pass(1000);
  a.usage.check(a.few);
  a.connections.use(a.few, new EventEmitter());
  third.ended(1);
  second.ended(1);
  for (const each of links) each.close();
});

it('charges requests and tokens of a key at every gateway, over the bus', async () => {
  const { a, b, c, links, clock, pass } = await cluster();
  for (let i = 0; i < 3; i++) a.serve(100);
  b.serve(100);
  await pass(1000);
  c.usage.check(c.limited);
  b.serve(100);
  await pass(1000);
  // Five requests so far, of 500 tokens.
  for (const each of [a, b, c]) each.usage.check(each.limited);
  c.serve(10);
  await pass(5000);
  for (const each of [a, b, c]) {
    expect(() => each.usage.check(each.limited)).toThrow('requests_per_minute of 6');
    each.usage.check(each.free);
  }
  clock.ms += 10_000;
  b.serve(500);
  await pass(1000);
  clock.ms += 10_000;
  for (const each of [a, b, c]) expect(() => each.usage.check(each.limited)).toThrow('tokens_per_minute of 600');
  // Later reports repeat the same counts.
  await pass(10_000);
  clock.ms += 40_000;
  for (const each of [a, b, c]) each.usage.check(each.limited);
  for (const each of links) each.close();
});

it('reports limited keys until they are idle, and charges returned for a wait', () => {
  const clock = { ms: 0 };
  const { usage, limited, free } = gateway({ shareUsage: () => {} }, 'team', clock);
  usage.begin(free, 1, 5).ended(5);
  const end = usage.wait(limited);
  expect(usage.charged()).toEqual([{ name: 'team', requests: 1, tokens: 0 }]);
  end();
  usage.begin(limited, 1, 5).ended(5);
  expect(usage.charged()).toEqual([{ name: 'team', requests: 1, tokens: 10 }]);
  clock.ms += 119_000;
  expect(usage.charged()).toHaveLength(1);
  clock.ms += 1000;
  expect(usage.charged()).toEqual([]);
  usage.begin(limited, 1, 5).ended(5);
  expect(usage.charged()).toEqual([{ name: 'team', requests: 1, tokens: 10 }]);
});

it('charges each count once if reports are lost, late or repeated, and none from before the connection', () => {
  const charged = { requests: 0, tokens: 0 };
  const charges = new ChargesElsewhere((owner, requests, tokens) => {
    expect(owner).toBe('owner');
    charged.requests += requests;
    charged.tokens += tokens;
  });
  const from = {};
  const report = (requests: number, tokens: number, gateway = from): void =>
    charges.received(gateway, [{ owner: 'owner', requests, tokens }]);
  report(1000, 1e6);
  expect(charged).toEqual({ requests: 0, tokens: 0 });
  report(1001, 1e6 + 50);
  report(1001, 1e6 + 50);
  report(1005, 1e6 + 90);
  // Late.
  report(1003, 1e6 + 70);
  report(1006, 1e6 + 95);
  expect(charged).toEqual({ requests: 6, tokens: 95 });
  // Idle, and used again.
  charges.received(from, []);
  report(2, 20);
  expect(charged).toEqual({ requests: 8, tokens: 115 });
  // Another gateway, or another connection to the same one.
  report(7, 70, {});
  expect(charged).toEqual({ requests: 8, tokens: 115 });
});

it('ignores keys that are not configured here', () => {
  let receive: Parameters<GatewayPeers['shareUsage']>[1] = () => expect.unreachable();
  const keep: GatewayPeers['shareUsage'] = (_, onOther) => {
    receive = onOther;
  };
  const { usage, limited } = gateway({ shareUsage: keep }, 'team', { ms: 0 });
  const from = {};
  receive(from, { charged: [], open: [] });
  const open = { requests: 9, queued: 9, connections: 9 };
  receive(from, { charged: [{ owner: 'unknown', requests: 100, tokens: 100 }], open: [{ owner: 'unknown', open }] });
  usage.check(limited);
  expect(usage.charged()).toEqual([]);
});
