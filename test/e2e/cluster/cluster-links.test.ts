// The links of a cluster's processes to NATS are slow, lose data, hang and break: clients receive the same answers.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { TcpProxy } from '../../runtime/bus/tcp-proxy.ts';
import { type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, Stream } from './cluster.ts';

const kinds = [1, 2, 3, 4];
/** Long enough that a fault happens while they run. */
const longTokens = 400;

if (!natsInstalled && process.env.CI === undefined) {
  it.skip('links of a cluster over NATS: needs nats-server', () => {});
} else {
  describe('the link to NATS', () => {
    let nats: NatsServer;
    let proxies: TcpProxy[] = [];
    let gateway: RunningServer;
    const processes: RunningProcess[] = [];
    let expected: readonly Answer[] = [];
    const streams = () => kinds.map((kind) => new Stream(gateway, kind, longTokens));
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      proxies = await Promise.all([TcpProxy.start(nats.url), TcpProxy.start(nats.url)]);
      const [ofGateway, ofInstance] = proxies.map(({ url }) => url);
      gateway = await startServer(['--nats', ofGateway ?? '']);
      processes.push(gateway);
      const join = [ofInstance, nats.url].map((url, i) => startInstance(['--nats', url ?? '', '--name', `i${i}`]));
      processes.push(...(await Promise.all(join)));
      await until(async () => (await health(gateway)) === 2);
      expected = await answers(streams());
      for (const { tokens } of expected) expect(tokens).toBe(longTokens);
    });
    afterAll(async () => {
      for (const { process } of processes) process.kill('SIGKILL');
      for (const proxy of proxies) proxy.stop();
      await nats.stop();
    });

    /** Injects the fault while all streams run, and expects their answers. */
    async function during(fault: () => unknown): Promise<void> {
      const running = streams();
      await Promise.all(running.map(({ begun }) => begun));
      await fault();
      expect(await answers(running)).toEqual(expected);
    }
    const recovered = () => until(async () => (await health(gateway)) === 2 && (await idle(gateway)));

    it.each([
      ["an instance's", 1],
      ["a gateway's", 0],
    ])('%s is slow and loses data', async (_, which) => {
      await during(() => {
        proxies[which]?.delay(40);
        proxies[which]?.lose(0.02);
      });
      proxies[which]?.delay(0);
      proxies[which]?.lose(0);
      await recovered();
    });

    it.each([
      ["an instance's", 1],
      ["a gateway's", 0],
    ])('%s breaks and reconnects', async (_, which) => {
      await during(() => {
        proxies[which]?.cut(true);
        proxies[which]?.cut(false);
      });
      await recovered();
    });

    it("an instance's hangs: its requests finish elsewhere, and it rejoins", async () => {
      await during(() => proxies[1]?.hang(true));
      await until(async () => (await health(gateway)) === 1);
      proxies[1]?.hang(false);
      await recovered();
      expect(await answers(streams())).toEqual(expected);
    });

    it("a gateway's hangs: its requests wait, and continue when it resumes", async () => {
      const running = streams();
      await Promise.all(running.map(({ begun }) => begun));
      proxies[0]?.hang(true);
      await until(async () => (await health(gateway)) === 0);
      proxies[0]?.hang(false);
      expect(await answers(running)).toEqual(expected);
      await recovered();
    });
  });
}
