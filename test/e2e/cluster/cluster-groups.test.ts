// Pipeline groups of processes: long prompts have the tokens of one instance, also if a member is killed.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, Stream } from './cluster.ts';

const kinds = [1, 2, 3];
const promptOf = (kind: number) =>
  Array.from({ length: 300 }, (_, i) => `${kind}: ${(i * i + kind) % 97} and`).join(' ');

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('groups of processes: needs nats-server and the native kernels', () => {});
} else {
  describe('groups of processes', () => {
    let nats: NatsServer;
    let expected: readonly Answer[] = [];
    let gateway: RunningServer;
    const members = new Map<string, RunningProcess>();
    const join = async (name: string, role: string) =>
      members.set(name, await startInstance(['--nats', nats.url, '--name', name, '--role', role]));
    const answers = (of: RunningServer, salt: string) =>
      kinds.map((kind) => new Stream(of, kind, 8, { prompt: promptOf(kind), cache_salt: salt }));
    const all = (streams: readonly Stream[]) => Promise.all(streams.map(({ answer }) => answer));
    const chunks = () => metricSum(gateway, 'kvasir_instance_stage_chunks_total');
    const allIdle = () => until(async () => (await health(gateway)) === 3 && (await idle(gateway)));

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      const alone = await startServer(['--threads', '1']);
      expected = await all(answers(alone, ''));
      await alone.stop();
      gateway = await startServer(['--nats', nats.url, '--cpp-group', '2', '--cpp-tokens', '300']);
      await Promise.all([join('p', 'prefill'), join('q', 'prefill'), join('d', 'decode')]);
      await until(async () => (await health(gateway)) === 3);
    });
    afterAll(async () => {
      for (const { process } of [gateway, ...members.values()]) process.kill('SIGKILL');
      await nats.stop();
    });

    it('give the tokens of one instance, also if a member is killed during a prompt, and after its restart', async () => {
      expect(await all(answers(gateway, 'a'))).toEqual(expected);
      await until(async () => (await chunks()) > 0);
      const rows = (of: string) => metricSum(gateway, `kvasir_${of}_rows_sent_bytes_total`);
      // Instances report twice a second.
      await until(async () => (await rows('link')) > 0 && (await rows('link')) === (await rows('instance')));
      const running = answers(gateway, 'b');
      await Promise.race(running.map(({ begun }) => begun));
      members.get('q')?.process.kill('SIGKILL');
      expect(await all(running)).toEqual(expected);
      await join('q', 'prefill');
      await allIdle();
      const before = await chunks();
      // An instance that was slow recently is in no group: only further prompts show that it has become fast.
      for (let i = 0; (await chunks()) === before; i++) expect(await all(answers(gateway, `c${i}`))).toEqual(expected);
      await allIdle();
    });
  });
}
