// Prompts computed in processes of their own and gone on with in others, while any of them is killed, paused or cut off from NATS.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, model, Stream } from './cluster.ts';

/** Each takes a good part of a second to compute: some move while others wait. */
const kinds = [1, 2, 3, 4];
const promptOf = (kind: number) =>
  Array.from({ length: 600 }, (_, i) => `${kind}: ${(i * i + kind) % 97} and`).join(' ');
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
      members.set(name, await startInstance(['--nats', nats.url, '--name', name, '--role', roles[name], '--recheck']));
    const gateway = (which: number) => {
      const server = gateways[which];
      if (server === undefined) throw new Error(`no gateway ${which}`);
      return server;
    };
    let salts = 0;
    /** None of them finds a prefix of its own in any cache. */
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
    const freeLandings = () => metricSum(gateway(1), 'kvasir_instance_landing_pages_free');
    /** All are present, and none holds anything of a request. */
    const whole = () =>
      until(
        async () =>
          (await health(gateway(1))) === 4 && (await idle(gateway(1))) && (await freeLandings()) === receivePages,
      );
    /** Some pages are on their way, and some prompts are still to be computed. */
    const halfway = async (under: readonly Stream[]) => {
      await Promise.race(under.map(({ begun }) => begun));
    };

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      const alone = await startServer(['--threads', '1']);
      expected = await answers(kinds.map((kind) => new Stream(alone, kind, tokens, { prompt: promptOf(kind) })));
      await alone.stop();
      for (const answer of expected) expect(answer).toMatchObject({ tokens, reason: 'length' });
      // What a gateway admits the instance that decodes looks at once more, when it lands there.
      const rules = ['--admission', 'stage', '--slo-classes', 'never=60s/0.001ms'];
      gateways = await Promise.all([1, 2].map(() => startServer(['--nats', nats.url, ...rules])));
      await Promise.all((['p', 'q', 'd', 'e'] as const).map(join));
      await until(async () => (await health(gateway(0))) === 4 && (await health(gateway(1))) === 4);
      await until(async () => (await freeLandings()) > 0);
      receivePages = await freeLandings();
    });
    afterAll(async () => {
      for (const { process } of [...gateways, ...members.values()]) process.kill('SIGKILL');
      await nats.stop();
    });

    it('gives the tokens of one instance, for every gateway', async () => {
      expect(await answers([...streams(0), ...streams(1)])).toEqual([...expected, ...expected]);
      await whole();
      expect(await metricSum(gateway(1), 'kvasir_instance_sent_bytes_total')).toBeGreaterThan(0);
      const metrics = await (await fetch(`${gateway(1).url}/metrics`)).text();
      const ways = [...metrics.matchAll(/^kvasir_link_sent_bytes_total\{.*transport="(\w+)"\} [1-9]/gm)];
      const here = process.platform === 'linux' ? 'shared' : 'tcp';
      expect(new Set(ways.map(([, way]) => way))).toEqual(new Set([here]));
      for (const which of [0, 1]) {
        const { instances } = await viewOf(which);
        const [from, to] = (['prefill', 'decode'] as const).map((role) => instances.filter((one) => one.role === role));
        // Every gateway names the two ends of a link by its own numbers.
        const links = from?.flatMap((one) => one.links) ?? [];
        expect(links.reduce((sum, { bytes }) => sum + bytes, 0)).toBeGreaterThan(0);
        for (const link of links) expect(to?.map(({ instance }) => instance)).toContain(link.to);
      }
    });

    it('refuses where it has landed what would be late there, and the rest goes on', async () => {
      const sentBytes = () => metricSum(gateway(1), 'kvasir_instance_sent_bytes_total');
      const before = await sentBytes();
      const late = { model, prompt: promptOf(5), slo_class: 'never' };
      const answer = await fetch(`${gateway(0).url}/v1/completions`, { method: 'POST', body: JSON.stringify(late) });
      expect(answer.status).toBe(429);
      expect(await answer.json()).toMatchObject({
        error: { refusal: { at: 'decode', reason: 'tbt', most_ms: 0.001 } },
      });
      // All of it had gone there.
      await until(async () => (await sentBytes()) > before);
      await whole();
    });

    it.each([
      ['prefills', 'p'],
      ['decodes', 'd'],
    ] as const)('survives kill -9 of one that %s while pages move', async (_, name) => {
      const under = streams(0);
      await halfway(under);
      members.get(name)?.process.kill('SIGKILL');
      expect(await answers(under)).toEqual(expected);
      await join(name);
      await whole();
    });

    it('survives the pause of one that decodes, which comes back with nothing of it', async () => {
      const under = streams(0);
      await halfway(under);
      const paused = members.get('e')?.process;
      paused?.kill('SIGSTOP');
      expect(await answers(under)).toEqual(expected);
      await until(async () => (await health(gateway(0))) === 3);
      paused?.kill('SIGCONT');
      await whole();
    });

    it('changes roles under load, whichever gateway says so, without a failed request', async () => {
      const role = async (which: number, instance: number, to: string) => {
        const path = `/api/instances/${instance}/role`;
        return (await fetch(gateway(which).url + path, { method: 'POST', body: JSON.stringify({ role: to }) })).status;
      };
      const rolesAt = async (which: number) => (await viewOf(which)).instances.map((instance) => instance.role);
      const decoders = async (which: number) => (await rolesAt(which)).filter((each) => each === 'decode').length;
      const before = await rolesAt(0);
      const [first, second] = [before.indexOf('prefill'), before.lastIndexOf('prefill')];
      const under = streams(0);
      expect(await role(0, first, 'decode')).toBe(200);
      expect(await role(0, second, 'decode')).toBe(409);
      under.push(...streams(1));
      await until(async () => (await decoders(1)) === 3);
      under.push(...streams(1));
      expect(await role(0, first, 'prefill')).toBe(200);
      under.push(...streams(0));
      expect(await answers(under)).toEqual([...expected, ...expected, ...expected, ...expected]);
      await until(async () => (await decoders(1)) === 2);
      expect(await rolesAt(0)).toEqual(before);
      await whole();
    });

    it('goes on when the NATS server is killed and comes back', async () => {
      const under = streams(0);
      await halfway(under);
      await nats.kill();
      await nats.start();
      expect(await answers(under)).toEqual(expected);
      await whole();
    });

    it('cancels on both sides what a killed gateway had, and the other one goes on', async () => {
      const lost = streams(0, 1_500);
      for (const { answer } of lost) answer.catch(() => {});
      await halfway(lost);
      const kept = streams(1);
      gateway(0).process.kill('SIGKILL');
      expect(await answers(kept)).toEqual(expected);
      await whole();
    });
  });
}
