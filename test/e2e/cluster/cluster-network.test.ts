// An instance in a network namespace, behind a link that is slow and that is cut during transfers.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, Stream } from './cluster.ts';
import { NetworkLink } from './network-link.ts';

const kinds = [1, 2, 3];
const promptOf = (kind: number) =>
  Array.from({ length: 300 }, (_, i) => `${kind}: ${(i * i + kind) % 97} and`).join(' ');
const tokens = 40;

const possible = loadNative() !== undefined && (natsInstalled || process.env.CI !== undefined);
const link = possible ? NetworkLink.open() : undefined;
if (link === undefined) {
  it.skip('an instance behind a link: needs nats-server, the native kernels, and permission to create network namespaces', () => {});
} else {
  describe('an instance behind a link', () => {
    let nats: NatsServer;
    let gateway: RunningServer;
    let expected: readonly Answer[] = [];
    let receivePages = 0;
    const running: RunningProcess[] = [];
    const urlFrom = (host: string) => nats.url.replace('127.0.0.1', host);
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
    let salts = 0;
    const streams = () => {
      const salt = String(++salts);
      return kinds.map((kind) => new Stream(gateway, kind, tokens, { prompt: promptOf(kind), cache_salt: salt }));
    };
    const freeReceivePages = () => metricSum(gateway, 'kvasir_instance_landing_pages_free');
    const allIdle = (instances: number) =>
      until(
        async () =>
          (await health(gateway)) === instances && (await idle(gateway)) && (await freeReceivePages()) === receivePages,
      );

    beforeAll(async () => {
      nats = await NatsServer.start('-js', '-a', '0.0.0.0');
      const alone = await startServer(['--threads', '1']);
      expected = await answers(
        kinds.map((kind) => new Stream(alone, kind, tokens, { prompt: promptOf(kind), cache_salt: 'alone' })),
      );
      await alone.stop();
      gateway = await startServer(['--nats', nats.url]);
      const prefill = ['--nats', nats.url, '--name', 'p', '--role', 'prefill'];
      const behind = [
        '--nats',
        urlFrom(link.here),
        '--name',
        'd',
        '--role',
        'decode',
        '--pages-host',
        link.there,
        '--insecure',
      ];
      running.push(gateway, ...(await Promise.all([startInstance(prefill), startInstance(behind, link.within)])));
      await until(async () => (await health(gateway)) === 2 && (await freeReceivePages()) > 0);
      receivePages = await freeReceivePages();
    });
    afterAll(async () => {
      for (const { process } of running) process.kill('SIGKILL');
      await nats.stop();
      link.close();
    });

    it('receives prompts over the slow link', async () => {
      link.limit('200mbit');
      expect(await answers(streams())).toEqual(expected);
      await allIdle(2);
      expect(await metricSum(gateway, 'kvasir_instance_sent_bytes_total')).toBeGreaterThan(0);
    });

    it('is declared lost when the link is cut during a transfer, and rejoins afterwards', async () => {
      running.push(await startInstance(['--nats', nats.url, '--name', 'e', '--role', 'decode']));
      await until(async () => (await health(gateway)) === 3);
      await until(async () => (await freeReceivePages()) > receivePages);
      receivePages = await freeReceivePages();
      link.limit('30mbit');
      const requests = streams();
      // The hand-off to the other instance is complete; most pages of those over the link are not sent yet.
      await Promise.race(requests.map(({ begun }) => begun));
      link.cut(true);
      expect(await answers(requests)).toEqual(expected);
      await until(async () => (await health(gateway)) === 2);
      link.cut(false);
      link.limit('1gbit');
      await allIdle(3);
      expect(await answers(streams())).toEqual(expected);
    });
  });
}
