// Prefixes fetched between instances in processes of their own: the answers of one instance, also if the source is killed.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, Stream } from './cluster.ts';

/** Maximum number of rounds until a prefix is fetched. */
const roundsMax = 40;
/** Long enough that queued requests wait longer than a fetch takes. */
const tails = Array.from({ length: 12 }, (_, tail) =>
  Array.from({ length: 250 }, (_, i) => 310 + ((tail * 17 + i) % 300)),
);
const prefixOf = (round: number) => Array.from({ length: 800 }, (_, i) => 300 + ((round * 41 + i * i * 13 + i) % 400));

/** Computes a prefix on one instance; then submits more requests with it than that instance can serve. */
async function submitRound(gateway: RunningServer, round: number): Promise<readonly Promise<Answer>[]> {
  const prefix = prefixOf(round);
  await new Stream(gateway, round, 1, { prompt: prefix }).answer;
  return tails.map((tail) => new Stream(gateway, round, 8, { prompt: [...prefix, ...tail] }).answer);
}

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('prefixes between processes: needs nats-server and the native kernels', () => {});
} else {
  describe('prefixes between processes', () => {
    let nats: NatsServer;
    let [gateway, alone]: RunningServer[] = [];
    let instances: readonly RunningProcess[] = [];

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      [gateway, alone] = await Promise.all([startServer(['--nats', nats.url]), startServer(['--threads', '1'])]);
      const flags = ['--nats', nats.url, '--kv-memory', '64m'];
      instances = await Promise.all([startInstance(flags), startInstance(flags)]);
    });
    afterAll(async () => {
      for (const { process } of [gateway, alone, ...instances]) process?.kill('SIGKILL');
      await nats.stop();
    });

    it('are fetched, with the answers of one instance, also if a process is killed', async () => {
      if (gateway === undefined || alone === undefined) throw new Error('No gateway serves');
      const [server, one] = [gateway, alone];
      await until(async () => (await health(server)) === 2);
      const sent = () => metricSum(server, 'kvasir_instance_sent_bytes_total');
      let round = 0;
      for (; round < roundsMax && (await sent()) === 0; round++) {
        const answers = await Promise.all(await submitRound(server, round));
        expect(answers).toEqual(await Promise.all(await submitRound(one, round)));
        await until(() => idle(server));
      }
      expect(await sent()).toBeGreaterThan(0);
      expect(await metricSum(server, 'kvasir_link_sent_bytes_total')).toBeGreaterThanOrEqual(await sent());
      const answers = await submitRound(server, round);
      instances[0]?.process.kill('SIGKILL');
      expect(await Promise.all(answers)).toEqual(await Promise.all(await submitRound(one, round)));
      await until(async () => (await health(server)) === 1 && (await idle(server)));
    });
  });
}
