// The links of a cluster's processes to NATS are slow, lose, hang, and break: clients hear what they would have heard.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { TcpProxy } from '../../runtime/bus/tcp-proxy.ts';
import { type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, Stream } from './cluster.ts';

const kinds = [1, 2, 3, 4];
/** They run for longer than it takes to break something. */
const longTokens = 400;

if (!natsInstalled && process.env.CI === undefined) {
  it.skip('links of a cluster over NATS: needs nats-server', () => {});
} else {
  describe('the link to NATS', () => {
    let nats: NatsServer;
    let proxies: TcpProxy[] = [];
    let gateway: RunningServer;
    const running: RunningProcess[] = [];
    let expected: readonly Answer[] = [];
    const streams = () => kinds.map((kind) => new Stream(gateway, kind, longTokens));
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      proxies = await Promise.all([TcpProxy.start(nats.url), TcpProxy.start(nats.url)]);
      const [ofGateway, ofInstance] = proxies.map(({ url }) => url);
      gateway = await startServer(['--nats', ofGateway ?? '']);
      running.push(gateway);
      const join = [ofInstance, nats.url].map((url, i) => startInstance(['--nats', url ?? '', '--name', `i${i}`]));
      running.push(...(await Promise.all(join)));
      await until(async () => (await health(gateway)) === 2);
      expected = await answers(streams());
      for (const { tokens } of expected) expect(tokens).toBe(longTokens);
    });
    afterAll(async () => {
      for (const { process } of running) process.kill('SIGKILL');
      for (const proxy of proxies) proxy.stop();
      await nats.stop();
    });

    /** All have begun when `act` is done; then all is well again. */
    async function during(act: () => unknown): Promise<void> {
      const under = streams();
      await Promise.all(under.map(({ begun }) => begun));
      await act();
      expect(await answers(under)).toEqual(expected);
    }
    const mended = () => until(async () => (await health(gateway)) === 2 && (await idle(gateway)));

    it.each([
      ["an instance's", 1],
      ["a gateway's", 0],
    ])('%s is slow and loses', async (_, which) => {
      await during(() => {
        proxies[which]?.delay(40);
        proxies[which]?.lose(0.02);
      });
      proxies[which]?.delay(0);
      proxies[which]?.lose(0);
      await mended();
    });

    it.each([
      ["an instance's", 1],
      ["a gateway's", 0],
    ])('%s breaks and is mended', async (_, which) => {
      await during(() => {
        proxies[which]?.cut(true);
        proxies[which]?.cut(false);
      });
      await mended();
    });

    it("an instance's hangs: what it had is finished elsewhere, and it comes back", async () => {
      await during(() => proxies[1]?.hang(true));
      await until(async () => (await health(gateway)) === 1);
      proxies[1]?.hang(false);
      await mended();
      expect(await answers(streams())).toEqual(expected);
    });

    it("a gateway's hangs: its requests wait, and go on when it is let go", async () => {
      const under = streams();
      await Promise.all(under.map(({ begun }) => begun));
      proxies[0]?.hang(true);
      await until(async () => (await health(gateway)) === 0);
      proxies[0]?.hang(false);
      expect(await answers(under)).toEqual(expected);
      await mended();
    });
  });
}
