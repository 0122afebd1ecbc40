// Instances that cannot send pages to one another: found by probes, logged once, reported to gateways, and counted against readiness.
import { createServer, type Server } from 'node:net';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { identityOf } from '../../../src/core/membership/agreement.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import { roleSwitchLimits } from '../../../src/core/router/roles/role-switch.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { examineCluster } from '../../../src/runtime/processes/examine-cluster.ts';
import { PeerSession } from '../../../src/runtime/processes/peer-session.ts';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';
import { PageReachability, probePages } from '../../../src/runtime/transfer/page-reachability.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { readGateway } from '../../../src/runtime/wire/messages.ts';
import { wireVersion } from '../../../src/runtime/wire/versions.ts';
import { settled } from '../bus/settled.ts';
import { admitAll } from '../threads/instances.ts';

const closing: (() => unknown)[] = [];
let hub: MemoryHub;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
  hub = new MemoryHub();
});
afterEach(async () => {
  vi.useRealTimers();
  for (const close of closing.splice(0).toReversed()) await close();
});

async function pass(ms: number): Promise<void> {
  await settled();
  vi.advanceTimersByTime(ms);
  await settled();
}

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '[]' };
interface Announced {
  readonly role?: InstanceRole;
  readonly pages?: string;
  readonly isa?: string;
  readonly hashKey?: readonly number[];
  unreachable?: readonly string[];
}

/** An instance as gateways and other instances observe it. */
function announce(name: string, own: Announced): void {
  const { role = 'mixed', pages, isa, hashKey = [] } = own;
  const bus = hub.connect();
  let number = 0;
  const session = new PeerSession({ bus, name, incarnation: 1, log: () => {} }, 'instance', {
    readAnnouncement: readGateway,
    announcement: () => ({
      ...{
        role,
        pages,
        isa,
        root,
        unreachable: own.unreachable,
        identity: hashKey.length === 0 ? '' : identityOf(root, hashKey),
      },
      ...{ canSwitchRole: true, capacityTokens: 100, fetchBytesPerToken: undefined, stageLayers: undefined },
    }),
    onJoined: () => {},
    onLost: () => {},
    onMessage: () => {},
    status: () =>
      encode({
        ...{ snapshot: { ...emptySnapshot, ready: true }, number: ++number, kvEventNumber: 0 },
        ...{ requests: [], unreachable: own.unreachable },
      }),
  });
  session.start();
  closing.push(async () => {
    session.close();
    await bus.close();
  });
}

it('logs an unreachable instance with its address once, and when it is reachable again', async () => {
  const log: string[] = [];
  const answers: (string | undefined)[] = ['ECONNREFUSED', 'ECONNREFUSED', 'ECONNREFUSED', undefined];
  const probed: string[] = [];
  const probe = async (address: string): Promise<string | undefined> => {
    probed.push(address);
    return address === '10.0.0.2:9' ? answers.shift() : undefined;
  };
  const bus = hub.connect();
  const process = { bus, name: 'a', incarnation: 1, log: (line: string) => log.push(line) };
  const reachability = new PageReachability({ ...process, own: '127.0.0.1:1', probe });
  reachability.start();
  closing.push(() => reachability.close());
  announce('b', { pages: '10.0.0.2:9' });
  announce('c', { pages: '127.0.0.1:1' });
  announce('d', { pages: '10.0.0.4:9' });
  announce('gateway', {});
  await pass(0);
  // One failure may be that of an instance that starts.
  expect([probed, log]).toEqual([['10.0.0.2:9', '10.0.0.4:9'], []]);
  await pass(500);
  expect(reachability.unreachable).toEqual(['b', 'c']);
  expect(log.toSorted()).toEqual([
    'Cannot reach the KV pages of instance b at 10.0.0.2:9: ECONNREFUSED: start it with --pages-host and an address that this host reaches',
    'Cannot reach the KV pages of instance c at 127.0.0.1:1: it is the address of this instance: start it with --pages-host and an address that this host reaches',
  ]);
  for (let i = 0; i < 24; i++) await pass(500);
  expect(reachability.unreachable).toEqual(['c']);
  expect(log.slice(2)).toEqual(['Reached the KV pages of instance b at 10.0.0.2:9 again']);
  expect(probed.filter((address) => address === '10.0.0.4:9')).toHaveLength(1);
});

it('a gateway is not ready while no prefill instance reaches a decode instance, and states the address', async () => {
  const bus = hub.connect();
  const joining = agreeOn(bus, { modelFingerprint: 'm', root: undefined });
  await pass(2_000);
  const agreement = await joining;
  const { hashKey } = agreement;
  const log: string[] = [];
  const gateway = new ClusterGateway({
    ...{ bus, name: 'g', incarnation: 1, agreement, log: (line: string) => log.push(line) },
    ...{ queueMax: 9, admission: admitAll, timeoutUs: 1e9 },
  });
  closing.push(() => gateway.close());
  const prefill: Announced = { role: 'prefill', hashKey, isa: 'avx2', pages: '127.0.0.1:7', unreachable: [] };
  announce('p', prefill);
  announce('d', { role: 'decode', hashKey, isa: 'avx512', pages: '127.0.0.1:8' });
  await pass(500);
  expect(gateway.readiness()).toEqual({ kind: 'ready' });
  expect(log.filter((line) => line.includes('instruction set'))).toEqual([
    'Instance d has the instruction set avx512, instance p avx2: after a failure requests continue on equal ones alone; --inputs i16 gives equal bits on all',
  ]);
  prefill.unreachable = ['d'];
  for (let i = 0; i < 3; i++) await pass(500);
  expect(gateway.readiness()).toEqual({
    kind: 'incomplete',
    message: 'instance p cannot reach the KV pages of instance d at 127.0.0.1:8: give it --pages-host',
  });
  expect(log.filter((line) => line.includes('cannot reach'))).toEqual([
    'Instance p cannot reach the KV pages of instance d at 127.0.0.1:8: it receives none from there',
  ]);
  announce('e', { role: 'decode', hashKey, isa: 'avx512', pages: '10.0.0.5:8' });
  await pass(500);
  expect(gateway.readiness()).toEqual({ kind: 'ready' });
});

it.each([
  [undefined, 'join one with --role prefill, or start the gateway with --role-switch'],
  [roleSwitchLimits, 'join one with --role prefill'],
])('a gateway without a prefill instance states what helps', async (roleSwitch, remedy) => {
  const bus = hub.connect();
  const joining = agreeOn(bus, { modelFingerprint: 'm', root: undefined });
  await pass(2_000);
  const agreement = await joining;
  const gateway = new ClusterGateway({
    ...{ bus, name: 'g', incarnation: 1, agreement, log: () => {} },
    ...{ queueMax: 9, admission: { ...admitAll, roleSwitch }, timeoutUs: 1e9 },
  });
  closing.push(() => gateway.close());
  announce('d', { role: 'decode', hashKey: agreement.hashKey, isa: 'avx2', pages: '127.0.0.1:8' });
  await pass(500);
  const needed = 'it needs a mixed one, or a prefill and a decode one';
  const message = `the cluster has 1 decode instances; ${needed}: ${remedy}`;
  expect(gateway.readiness()).toEqual({ kind: 'incomplete', message });
});

it('an examination lists processes and faults', async () => {
  const bus = hub.connect();
  const joining = agreeOn(bus, { modelFingerprint: 'm', root: { ...root, weightForm: 'q4' } });
  await pass(2_000);
  const { hashKey } = await joining;
  announce('a', { hashKey, isa: 'amx', pages: '10.0.0.2:9', unreachable: ['b'] });
  announce('b', { hashKey, isa: 'avx2', pages: '10.0.0.3:9' });
  bus.publish('beat.gateway', encode({ version: 3, name: 'g', incarnation: 1, number: 1 }));
  const examining = examineCluster(bus, async (address) => (address === '10.0.0.3:9' ? 'no answer' : undefined));
  await pass(0);
  bus.publish('beat.gateway', encode({ version: 3, name: 'g', incarnation: 1, number: 1 }));
  for (let i = 0; i < 4; i++) await pass(500);
  const { processes, findings } = await examining;
  expect(processes.map(({ process, role, reached }) => [process, role, reached])).toEqual([
    ['a', 'mixed', 'yes'],
    ['b', 'mixed', 'no answer'],
    ['g', 'gateway', undefined],
  ]);
  expect(findings).toEqual([
    `g has wire version 3, this release ${wireVersion}`,
    'Instance a differs from the record: the cluster has weights q4, this one has q8',
    'Instance a cannot reach the KV pages of instance b',
    'Instance b differs from the record: the cluster has weights q4, this one has q8',
    'Instance b: its KV pages at 10.0.0.3:9 cannot be reached from here: no answer',
    'Instances have different instruction sets: amx (a), avx2 (b): failed requests continue on equal ones alone',
  ]);
});

it('a probe accepts the greeting of a page port alone', async () => {
  vi.useRealTimers();
  const serve = (greeting: string | undefined): Promise<string> =>
    new Promise((resolve) => {
      const server: Server = createServer((socket) => {
        socket.on('error', () => {});
        if (greeting === undefined) socket.destroy();
        else socket.write(Buffer.from(greeting, 'latin1'));
      });
      closing.push(() => server.close());
      server.listen(0, '127.0.0.1', () => {
        const at = server.address();
        resolve(`127.0.0.1:${typeof at === 'object' ? at?.port : 0}`);
      });
    });
  expect(await probePages(await serve('krvasir1'))).toBeUndefined();
  expect(await probePages(await serve('HTTP/1.1 400 Bad Request'))).toBe('another service answers');
  expect(await probePages(await serve(undefined))).toMatch(/ends the connection|ECONNRESET/);
  expect(await probePages('127.0.0.1:1')).toBe('ECONNREFUSED');
  for (const address of ['nowhere', '127.0.0.1:', '127.0.0.1:70000'])
    expect(await probePages(address)).toBe('the address has no valid port');
});
