// A cluster whose decode instance has attention workers in other processes, while any process but the gateway is killed.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningServer, startAttentionWorker, startInstance, startServer, until } from '../server.ts';
import { type Answer, idle, Stream } from './cluster.ts';

const env = { KVASIR_TOKEN: 'a secret of this test' };
const config = join(root, 'test', 'e2e', 'cluster', 'attention-workers.yaml');
const kinds = [1, 2];
const promptOf = (kind: number) =>
  Array.from({ length: 120 }, (_, i) => `${kind}: ${(i * i + kind) % 97} and`).join(' ');
const tokens = 80;

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('a decode instance with attention workers: needs nats-server and the native kernels', () => {});
} else {
  describe('a decode instance with attention workers, and a prefill instance, in processes of their own', () => {
    let nats: NatsServer;
    let gateway: RunningServer;
    let expected: readonly Answer[] = [];
    const workers: Awaited<ReturnType<typeof startAttentionWorker>>[] = [];
    const startWorker = async (at: number) => {
      const port = workers[at]?.address.split(':')[1] ?? '0';
      const shard = ['--shard', `${at + 1}/2`, '--pages-port', port, '--kv-memory', '32m'];
      workers[at] = await startAttentionWorker(shard, env);
    };
    let salts = 0;
    /** Streams with a salt of their own: no cache has their prefixes. */
    const streams = () => {
      const salt = String(++salts);
      return kinds.map((kind) => new Stream(gateway, kind, tokens, { prompt: promptOf(kind), cache_salt: salt }));
    };
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
    const instances = async () =>
      (
        (await (await fetch(`${gateway.url}/api/cluster`)).json()) as {
          instances: readonly {
            instance: number;
            name: string;
            role: string;
            ready: boolean;
            computed_prompt_tokens: number;
            attention_workers: readonly { ready: boolean; calls: number; pulled_pages: number }[] | null;
          }[];
        }
      ).instances;
    /** The process of the instance with this role. */
    const pidOf = async (role: string) => {
      const name = (await instances()).find((instance) => instance.role === role && instance.ready)?.name;
      const lines = [...gateway.output().matchAll(new RegExp(`Instance ${name} has joined as process (\\d+)`, 'g'))];
      return Number(lines.at(-1)?.[1]);
    };
    /** Resolves when both instances serve with all workers, and no page is used. */
    const allIdle = () =>
      until(async () => {
        const all = await instances();
        const ready = all.filter((instance) => instance.ready);
        const workersReady = ready.flatMap(({ attention_workers: own }) => own ?? []).filter((worker) => worker.ready);
        return ready.length === 2 && workersReady.length === 2 && (await idle(gateway));
      });

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      const alone = await startServer(['--threads', '1']);
      await Promise.all([0, 1].map(startWorker));
      const addresses = workers.map(({ address }) => address).join(',');
      const flags = ['--nats', nats.url, '--config', config, '--attention-workers', addresses];
      [gateway, expected] = await Promise.all([
        startServer(flags, env),
        answers(kinds.map((kind) => new Stream(alone, kind, tokens, { prompt: promptOf(kind) }))),
      ]);
      await alone.stop();
      for (const answer of expected) expect(answer).toMatchObject({ tokens, reason: 'length' });
    });
    afterAll(async () => {
      for (const { process } of [gateway, ...workers]) process.kill('SIGKILL');
      await nats.stop();
    });

    it('decodes prompts of the prefill instance with the tokens of one instance', async () => {
      expect(await answers(streams())).toEqual(expected);
      await allIdle();
      const decode = (await instances()).find(({ role }) => role === 'decode');
      expect(decode?.computed_prompt_tokens).toBe(0);
      expect(decode?.attention_workers?.map(({ calls, pulled_pages: pulled }) => [calls > 0, pulled > 0])).toEqual([
        [true, true],
        [true, true],
      ]);
      const role = `${gateway.url}/api/instances/${decode?.instance}/role`;
      const answer = await fetch(role, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ role: 'prefill' }),
      });
      expect([answer.status, await answer.text()]).toEqual([409, expect.stringContaining('its role is fixed')]);
    });

    it.each(['decode', 'prefill'])(
      'gives these tokens though the %s instance is killed in mid-stream',
      async (role) => {
        const running = streams();
        await Promise.race(running.map(({ begun }) => begun));
        process.kill(await pidOf(role), 'SIGKILL');
        expect(await answers(running)).toEqual(expected);
        await allIdle();
      },
    );

    it('gives these tokens though an attention worker is killed in mid-stream and starts again', async () => {
      const losses = await metricSum(gateway, 'kvasir_attention_worker_losses_total');
      const running = streams();
      await Promise.all(running.map(({ begun }) => begun));
      workers[1].process.kill('SIGKILL');
      await startWorker(1);
      expect(await answers(running)).toEqual(expected);
      expect(await metricSum(gateway, 'kvasir_attention_worker_losses_total')).toBe(losses + 1);
      await allIdle();
    });

    it('has another instance whose attention worker is a child process and ends with it', async () => {
      const flags = ['--dop', '1,1', '--attention-workers', 'processes', '--kv-memory', '64m'];
      const member = await startInstance(flags, [], { ...env, KVASIR_NATS: nats.url });
      const pid = Number(/Attention worker 1\/1 listens at \S+ as process (\d+)/.exec(member.output())?.[1]);
      await until(async () => (await instances()).filter(({ ready }) => ready).length === 3);
      member.process.kill('SIGKILL');
      await until(async () => !existsSync(`/proc/${pid}`));
    });
  });
}
