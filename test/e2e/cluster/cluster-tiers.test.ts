// Instances in processes of their own with blocks on SSD: a successor finds the blocks of a killed process.
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { health, model } from './cluster.ts';

const prompt = Array.from({ length: 700 }, (_, i) => 300 + ((7 * i) % 90));
const wholeBlocks = Math.floor((prompt.length - 1) / 32);
/** A block of kvasir-tiny has 6 pages. */
const blockBytes = 6 * 2 ** 14;

async function complete(gateway: RunningServer): Promise<{ readonly text: string; readonly cachedTokens: number }> {
  const response = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model, prompt, max_tokens: 1, temperature: 0, ignore_eos: true }),
  });
  const { choices, usage } = (await response.json()) as {
    choices: { text: string }[];
    usage: { prompt_tokens_details?: { cached_tokens: number } };
  };
  return { text: choices[0]?.text ?? '', cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0 };
}

/** All blocks of the prompt are on SSD. */
const written = (gateway: RunningServer) =>
  until(async () => (await metricSum(gateway, 'kvasir_instance_ssd_written_bytes_total')) >= wholeBlocks * blockBytes);

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('tiers of instances in processes: needs nats-server and the native kernels', () => {});
} else {
  describe('tiers of instances in processes of their own', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-join-tiers-'));
    const gateways: RunningServer[] = [];
    const instances: RunningProcess[] = [];
    let nats: NatsServer;
    const gateway = async (flags: readonly string[]): Promise<RunningServer> => {
      const server = await startServer(flags);
      gateways.push(server);
      return server;
    };
    const joined = async (at: NatsServer, server: RunningServer): Promise<RunningProcess> => {
      const ssd = ['--ssd', join(folder, 'own'), '--ssd-size', '64m', '--host-memory', '16m'];
      const instance = await startInstance(['--nats', at.url, '--kv-memory', '64m', ...ssd]);
      instances.push(instance);
      await until(async () => (await health(server)) === 1);
      return instance;
    };
    const killed = async (instance: RunningProcess, server: RunningServer): Promise<void> => {
      instance.process.kill('SIGKILL');
      await until(async () => (await health(server)) === 0);
    };

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
    });
    afterAll(async () => {
      for (const { process } of [...gateways, ...instances]) process.kill('SIGKILL');
      await nats.stop();
      rmSync(folder, { recursive: true });
    });

    it('are found by the successor of a killed process in a cluster with the same block hash key', async () => {
      const server = await gateway(['--nats', nats.url]);
      const first = await joined(nats, server);
      expect(first.output()).toContain('(0 of ');
      const { text } = await complete(server);
      await written(server);
      await killed(first, server);
      const second = await joined(nats, server);
      expect(second.output()).toContain(`(${wholeBlocks} of `);
      expect(await complete(server)).toEqual({ text, cachedTokens: 32 * wholeBlocks });
      // Its SSD folder is free once the process has ended, seconds before the gateway declares it lost.
      second.process.kill('SIGKILL');
      await once(second.process, 'exit');
      const elsewhere = await NatsServer.start('-js');
      try {
        const other = await gateway(['--nats', elsewhere.url]);
        const third = await joined(elsewhere, other);
        expect(third.output()).toMatch(/Reset \S+\.index: [^"]+"/);
        expect(await complete(other)).toEqual({ text, cachedTokens: 0 });
      } finally {
        await elsewhere.stop();
      }
    });

    it('of the child processes of a gateway are found after its restart', async () => {
      const config = join(folder, 'cluster.yaml');
      const ssd = `ssd: ${join(folder, 'shared')}\nssd-size: 128m\n`;
      writeFileSync(
        config,
        `nats: ${nats.url}\ncluster: children\nthreads: 2\nkv-memory: 64m\n${ssd}instances:\n- {role: prefill}\n- {role: decode}\n`,
      );
      const before = await gateway(['--config', config]);
      await until(async () => (await health(before)) === 2);
      const { text } = await complete(before);
      await written(before);
      before.process.kill('SIGKILL');
      const after = await gateway(['--config', config]);
      await until(async () => (await health(after)) === 2);
      expect(after.output()).toContain(`(${wholeBlocks} of `);
      expect(await complete(after)).toEqual({ text, cachedTokens: 32 * wholeBlocks });
    });
  });
}
