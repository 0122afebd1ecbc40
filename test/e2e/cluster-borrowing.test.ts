// Processes that lend one another memory: a request longer than any of their pools has the tokens of one big instance, whoever of them is killed.
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../src/kernel/native.ts';
import { NatsServer, natsInstalled } from '../live/bus/nats-server.ts';
import { livePrompt } from '../live/instances.ts';
import { Stream } from './cluster.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from './server.ts';

/** 64 blocks of 32 tokens of the embedded model. */
const kvMemory = String(64 * 32 * 6 * 2 * 2 * 64 * 2);
const context = ['--context', '8192'];
const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

const native = loadNative() !== undefined;
const runs = native && (natsInstalled || process.env.CI !== undefined);

interface Cluster {
  readonly gateway: RunningServer;
  readonly join: (name: string) => Promise<RunningProcess>;
  readonly members: ReadonlyMap<string, RunningProcess>;
}

async function started(names: readonly string[]): Promise<Cluster> {
  const nats = await NatsServer.start('-js');
  closing.push(() => nats.stop());
  const members = new Map<string, RunningProcess>();
  const join = async (name: string): Promise<RunningProcess> => {
    const lends = ['--borrow', '--lend-share', '0.9', '--lease-ms', '3000'];
    const member = await startInstance([
      ...['--nats', nats.url, '--name', name, '--kv-memory', kvMemory],
      ...context,
      ...lends,
    ]);
    members.set(name, member);
    closing.push(() => member.process.kill('SIGKILL'));
    return member;
  };
  const gateway = await startServer(['--nats', nats.url, ...context]);
  closing.push(() => gateway.stop());
  await Promise.all(names.map(join));
  await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
  return { gateway, join, members };
}

const long = { prompt: livePrompt(1, 1_900) };
/** So many that gateways, which are told twice a second, hear of the loans before the end. */
const outputs = 1_100;
const ask = (gateway: RunningServer): Stream => new Stream(gateway, 1, outputs, long);

async function ofInstances(gateway: RunningServer, name: string): Promise<readonly number[]> {
  const text = await (await fetch(`${gateway.url}/metrics`)).text();
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`));
  return lines.map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)));
}

const gauges = {
  creditor: 'kvasir_instance_lent_blocks',
  gManager: 'kvasir_instance_gmanager',
  debtor: 'kvasir_instance_borrowed_blocks',
};

/** Nobody has, lends or borrows anything. */
async function atRest(gateway: RunningServer): Promise<boolean> {
  const held = ['kv_pages_used', 'lent_blocks', 'borrowed_blocks'].map((name) => `kvasir_instance_${name}`);
  for (const name of held) if ((await metricSum(gateway, name)) !== 0) return false;
  return true;
}

describe.skipIf(!runs)('instances of processes that borrow (needs nats-server)', () => {
  let expected = '';
  beforeAll(async () => {
    const alone = await startServer([
      '--threads',
      '1',
      '--model',
      'models/kvasir-tiny/kvasir-tiny-q8_0.gguf',
      ...context,
    ]);
    expected = (await ask(alone).answer).text;
    await alone.stop();
  }, 60_000);

  it('answer as one big instance does, also when debtor, creditor and gManager are killed', async () => {
    const { gateway, join, members } = await started(['a', 'b', 'c']);
    // In the order in which the gateway met them, it numbers them.
    const names = [...gateway.output().matchAll(/Instance (\w+) has joined/g)].map(([, name]) => name ?? '');
    expect((await ask(gateway).answer).text).toBe(expected);
    expect(await metricSum(gateway, 'kvasir_instance_remote_queries_total')).toBeGreaterThan(0);
    await until(() => atRest(gateway));

    for (const victim of ['creditor', 'gManager', 'debtor'] as const) {
      const stream = ask(gateway);
      let at = -1;
      await until(async () => {
        at = (await ofInstances(gateway, gauges[victim])).findIndex((figure) => figure > 0);
        return at >= 0;
      });
      const name = names[at] ?? '';
      const killed = members.get(name);
      expect(killed, victim).toBeDefined();
      killed?.process.kill('SIGKILL');
      // Who comes again has the number and the place that it had.
      await join(name);
      const { text, error } = await stream.answer;
      expect([victim, error, text]).toEqual([victim, undefined, expected]);
      await until(() => atRest(gateway));
      await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
    }
  }, 120_000);
});
