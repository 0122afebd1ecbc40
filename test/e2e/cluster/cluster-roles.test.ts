// Prefill and decode in processes of their own, while any of them is killed, paused or disconnected from NATS.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, model, Stream } from './cluster.ts';

/** Each prefill takes tenths of a second: some prompts move while others wait. */
const kinds = [1, 2, 3, 4];
const promptOf = (kind: number) =>
  Array.from({ length: 120 }, (_, i) => `${kind}: ${(i * i + kind) % 97} and`).join(' ');
const tokens = 40;

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('prefill and decode in processes of their own: needs nats-server and the native kernels', () => {});
} else {
  describe('prefill and decode in processes of their own', () => {
    let nats: NatsServer;
    let expected: readonly Answer[] = [];
    let receivePages = 0;
    const roles = { p: 'prefill', q: 'prefill', d: 'decode', e: 'decode' } as const;
    const members = new Map<keyof typeof roles, RunningProcess>();
    let gateways: RunningServer[] = [];
    const join = async (name: keyof typeof roles) =>
      members.set(name, await startInstance(['--nats', nats.url, '--name', name, '--role', roles[name]]));
    const gateway = (which: number) => {
      const server = gateways[which];
      if (server === undefined) throw new Error(`no gateway ${which}`);
      return server;
    };
    let salts = 0;
    /** Streams with a salt of their own: no cache has their prefixes. */
    const streams = (which: number, length = tokens) => {
      const salt = String(++salts);
      return kinds.map(
        (kind) => new Stream(gateway(which), kind, length, { prompt: promptOf(kind), cache_salt: salt }),
      );
    };
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
    const viewOf = async (which: number) =>
      (await (await fetch(`${gateway(which).url}/api/cluster`)).json()) as {
        instances: { instance: number; role: string; links: { to: number; bytes: number }[] }[];
      };
    const freeReceivePages = () => metricSum(gateway(1), 'kvasir_instance_landing_pages_free');
    /** Resolves when all instances serve and none holds pages of a request. */
    const allIdle = () =>
      until(
        async () =>
          (await health(gateway(1))) === 4 && (await idle(gateway(1))) && (await freeReceivePages()) === receivePages,
      );
    /** Resolves when some pages are in flight and some prompts are not computed yet. */
    const halfway = async (running: readonly Stream[]) => {
      await Promise.race(running.map(({ begun }) => begun));
    };

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      const alone = await startServer(['--threads', '1']);
      expected = await answers(kinds.map((kind) => new Stream(alone, kind, tokens, { prompt: promptOf(kind) })));
      await alone.stop();
      for (const answer of expected) expect(answer).toMatchObject({ tokens, reason: 'length' });
      // A decode instance checks received requests again.
      const rules = ['--admission', 'stage', '--slo-classes', 'never=60s/0.001ms'];
      gateways = await Promise.all([1, 2].map(() => startServer(['--nats', nats.url, ...rules])));
      await Promise.all((['p', 'q', 'd', 'e'] as const).map(join));
      await until(async () => (await health(gateway(0))) === 4 && (await health(gateway(1))) === 4);
      await until(async () => (await freeReceivePages()) > 0);
      receivePages = await freeReceivePages();
    });
    afterAll(async () => {
      for (const { process } of [...gateways, ...members.values()]) process.kill('SIGKILL');
      await nats.stop();
    });

    it('gives the tokens of one instance, for every gateway', async () => {
      expect(await answers([...streams(0), ...streams(1)])).toEqual([...expected, ...expected]);
      await allIdle();
      expect(await metricSum(gateway(1), 'kvasir_instance_sent_bytes_total')).toBeGreaterThan(0);
      const metrics = await (await fetch(`${gateway(1).url}/metrics`)).text();
      const transports = [...metrics.matchAll(/^kvasir_link_sent_bytes_total\{.*transport="(\w+)"\} [1-9]/gm)];
      const expectedTransport = process.platform === 'linux' ? 'shared' : 'tcp';
      expect(new Set(transports.map(([, transport]) => transport))).toEqual(new Set([expectedTransport]));
      for (const which of [0, 1]) {
        const { instances } = await viewOf(which);
        const [from, to] = (['prefill', 'decode'] as const).map((role) => instances.filter((one) => one.role === role));
        // Every gateway names the two ends of a link by its own indices.
        const links = from?.flatMap((one) => one.links) ?? [];
        expect(links.reduce((sum, { bytes }) => sum + bytes, 0)).toBeGreaterThan(0);
        for (const link of links) expect(to?.map(({ instance }) => instance)).toContain(link.to);
      }
    });

    it('refuses a received request that would miss its SLO at the decode instance, and serves the others', async () => {
      const sentBytes = () => metricSum(gateway(1), 'kvasir_instance_sent_bytes_total');
      const before = await sentBytes();
      const late = { model, prompt: promptOf(5), slo_class: 'never' };
      const answer = await fetch(`${gateway(0).url}/v1/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(late),
      });
      expect(answer.status).toBe(429);
      expect(await answer.json()).toMatchObject({
        error: { refusal: { at: 'decode', reason: 'tbt', most_ms: 0.001 } },
      });
      // Its whole prompt had been sent.
      await until(async () => (await sentBytes()) > before);
      await allIdle();
    });

    it.each([
      ['prefills', 'p'],
      ['decodes', 'd'],
    ] as const)('survives kill -9 of an instance that %s during transfers', async (_, name) => {
      const running = streams(0);
      await halfway(running);
      members.get(name)?.process.kill('SIGKILL');
      expect(await answers(running)).toEqual(expected);
      await join(name);
      await allIdle();
    });

    it('survives the pause of a decode instance, which rejoins without requests', async () => {
      const running = streams(0);
      await halfway(running);
      const paused = members.get('e')?.process;
      paused?.kill('SIGSTOP');
      expect(await answers(running)).toEqual(expected);
      await until(async () => (await health(gateway(0))) === 3);
      paused?.kill('SIGCONT');
      await allIdle();
    });

    it('switches roles under load from either gateway, without a failed request', async () => {
      const role = async (which: number, instance: number, to: string) => {
        const path = `/api/instances/${instance}/role`;
        return (
          await fetch(gateway(which).url + path, {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify({ role: to }),
          })
        ).status;
      };
      const rolesAt = async (which: number) => (await viewOf(which)).instances.map((instance) => instance.role);
      const decoders = async (which: number) => (await rolesAt(which)).filter((each) => each === 'decode').length;
      const before = await rolesAt(0);
      const [first, second] = [before.indexOf('prefill'), before.lastIndexOf('prefill')];
      const running = streams(0);
      expect(await role(0, first, 'decode')).toBe(200);
      expect(await role(0, second, 'decode')).toBe(409);
      running.push(...streams(1));
      await until(async () => (await decoders(1)) === 3);
      running.push(...streams(1));
      expect(await role(0, first, 'prefill')).toBe(200);
      running.push(...streams(0));
      expect(await answers(running)).toEqual([...expected, ...expected, ...expected, ...expected]);
      await until(async () => (await decoders(1)) === 2);
      expect(await rolesAt(0)).toEqual(before);
      await allIdle();
    });

    it('continues when the NATS server is killed and restarts', async () => {
      const running = streams(0);
      await halfway(running);
      await nats.kill();
      await nats.start();
      expect(await answers(running)).toEqual(expected);
      await allIdle();
    });

    it('cancels the requests of a killed gateway on both sides, and serves the other gateway', async () => {
      const cancelled = streams(0, 1_500);
      for (const { answer } of cancelled) answer.catch(() => {});
      await halfway(cancelled);
      const kept = streams(1);
      gateway(0).process.kill('SIGKILL');
      expect(await answers(kept)).toEqual(expected);
      await allIdle();
    });
  });
}
