// A NATS server that returns without its disk: present processes restore their records, new ones join them, and snapshots are rewritten.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { connectNats } from '../../../src/runtime/bus/nats-bus.ts';
import { readAgreement } from '../../../src/runtime/wire/agreement-record.ts';
import { readLenderRecord } from '../../../src/runtime/wire/lending-messages.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, Stream } from './cluster.ts';

const kinds = [1, 2, 3];
const longTokens = 300;
const runs = loadNative() !== undefined && (natsInstalled || process.env.CI !== undefined);

describe.skipIf(!runs)('a NATS server that lost its disk (needs nats-server)', () => {
  let nats: NatsServer;
  let bus: Bus;
  let gateway: RunningServer;
  const running: RunningProcess[] = [];
  let expected: readonly Answer[] = [];
  const join = async (name: string, lends = ['--borrow']): Promise<void> => {
    running.push(await startInstance(['--nats', nats.url, '--name', name, '--kv-memory', '32m', ...lends]));
  };
  const open = async (): Promise<RunningServer> => {
    const opened = await startServer(['--nats', nats.url]);
    running.push(opened);
    return opened;
  };
  const streams = (of: RunningServer) => kinds.map((kind) => new Stream(of, kind, longTokens));
  const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
  const agreement = async () => {
    const record = await bus.records.read('agreement');
    return record && readAgreement(record.value);
  };
  const lenders = async () => {
    const record = await bus.records.read('lenders');
    return record === undefined ? [] : readLenderRecord(record.value).places.map(({ name }) => name);
  };
  const hasSnapshot = async (name: string) => (await bus.snapshots.read(`head.${name}`)) !== undefined;
  const managers = (of: RunningServer) => metricSum(of, 'kvasir_instance_gmanager');

  beforeAll(async () => {
    nats = await NatsServer.start('-js');
    bus = await connectNats(nats.url, 'kvasir');
    gateway = await open();
    await Promise.all([join('a'), join('b')]);
    await until(async () => (await health(gateway)) === 2 && (await managers(gateway)) === 1);
    expected = await answers(streams(gateway));
    for (const { tokens } of expected) expect(tokens).toBe(longTokens);
  });
  afterAll(async () => {
    for (const { process } of running) process.kill('SIGKILL');
    await bus.close();
    await nats.stop();
  });

  it('does not split the cluster: requests continue, and a new process finds the restored record', async () => {
    const before = await agreement();
    expect(before?.restored).toBeUndefined();
    await until(async () => (await hasSnapshot('a')) && (await hasSnapshot('b')));
    const requests = streams(gateway);
    await Promise.all(requests.map(({ begun }) => begun));
    await nats.kill();
    nats.loseDisk();
    await nats.start();
    const [late] = await Promise.all([open(), join('c')]);
    expect(await answers(requests)).toEqual(expected);
    await until(async () => (await health(gateway)) === 3 && (await health(late)) === 3);
    expect(await agreement()).toEqual({ ...before, restored: true });
    expect((await lenders()).toSorted()).toEqual(['a', 'b', 'c']);
    await until(async () => (await managers(gateway)) === 1 && (await managers(late)) === 1);
    await until(async () => (await hasSnapshot('a')) && (await hasSnapshot('b')) && (await hasSnapshot('c')));
    // Both gateways use all instances.
    for (const of of [gateway, late]) expect(await answers(streams(of))).toEqual(expected);
    await until(async () => (await idle(gateway)) && (await idle(late)));
  });

  it('a removed record is restored without a new key', async () => {
    const before = await agreement();
    const record = await bus.records.read('agreement');
    await bus.records.remove('agreement', record?.revision ?? 0);
    await join('d', []);
    await until(async () => (await health(gateway)) === 4);
    expect(await agreement()).toEqual(before);
  });

  it('removes the snapshot of an instance that leaves', async () => {
    await running.at(-1)?.stop();
    expect(await hasSnapshot('d')).toBe(false);
  });

  it('ends a process that is stopped while the server hangs', async () => {
    nats.hang();
    expect(await Promise.all(running.map((each) => each.stop()))).toEqual(running.map(() => 0));
  });
});
