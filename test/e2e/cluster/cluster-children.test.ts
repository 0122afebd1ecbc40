// A cluster of one command: the gateway starts its instances as child processes, which restart when they die and end with it.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { type RunningServer, startServer, until } from '../server.ts';
import { type Answer, health, Stream } from './cluster.ts';

/** Processes of instances, in the order of their joins. */
const pidsOf = (server: RunningServer) =>
  Array.from(server.output().matchAll(/has joined as process (\d+)/g), ([, pid]) => Number(pid));

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('instances as processes of a gateway: needs nats-server and the native kernels', () => {});
} else {
  describe('instances as processes of a gateway', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-children-'));
    const config = join(folder, 'cluster.yaml');
    let nats: NatsServer;
    let server: RunningServer;
    let expected: Answer;
    const answer = (at: RunningServer) => new Stream(at, 1, 40).answer;

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      writeFileSync(
        config,
        `nats: ${nats.url}\nthreads: 2\nkv-memory: 64m\ncontext: 2048\ninstances:\n- {role: prefill}\n- {role: decode}\n`,
      );
      const alone = await startServer(['--threads', '1']);
      expected = await answer(alone);
      await alone.stop();
      server = await startServer(['--config', config]);
    });
    afterAll(async () => {
      server.process.kill('SIGKILL');
      await nats.stop();
      rmSync(folder, { recursive: true });
    });

    it('serve once the command reports it, and restart when they are killed', async () => {
      // The names of joined instances and the address are on two streams, in either order.
      await until(async () => pidsOf(server).length === 2 && (await health(server)) === 2);
      expect(await answer(server)).toEqual(expected);
      process.kill(pidsOf(server)[0], 'SIGKILL');
      await until(async () => pidsOf(server).length === 3 && (await health(server)) === 2);
      // The gateway announced the departure of the killed process at once.
      expect(server.output()).toMatch(/Instance \S+ left: 1 serve/);
      expect(server.output()).not.toContain('sent no heartbeat');
      expect(await answer(server)).toEqual(expected);
      expect(server.output()).toMatch(/exited with SIGKILL: it is restarted in 0.5 s/);
      // Except for the start, all output of the gateway and its instances is JSON.
      const lines = server.output().split('\n').slice(0, -1);
      const logged = lines.filter((line) => !/^(Model |Instance \d+: |Serving on |Try:$|curl |$)/.test(line));
      expect(logged.length).toBeGreaterThan(4);
      for (const line of logged) expect(JSON.parse(line)).toMatchObject({ level: 30, msg: expect.anything() });
    });

    it.each(['SIGTERM', 'SIGKILL'] as const)('end when the gateway ends by %s', async (signal) => {
      const other = await startServer(['--config', config]);
      await until(async () => pidsOf(other).length === 2);
      const pids = pidsOf(other);
      expect(pids.map(isAlive)).toEqual([true, true]);
      other.process.kill(signal);
      await until(async () => !pids.some(isAlive));
    });

    it('end the command when they cannot start', async () => {
      await expect(startServer(['--config', config, '--weights', 'q8'])).rejects.toThrow(
        /the cluster has weights native, this one has q8[\s\S]*Cannot serve: Instance \S+ exited with code 1/,
      );
    });
  });
}
