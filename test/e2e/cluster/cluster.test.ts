// Gateways and instances in processes of their own over a real NATS server, while any of them is killed, paused or restarted.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { metric, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { type Answer, health, idle, model, Stream } from './cluster.ts';

if (!natsInstalled && process.env.CI === undefined) {
  it.skip('a cluster over NATS: needs nats-server', () => {});
} else {
  describe('a cluster', () => {
    let nats: NatsServer;
    const running: RunningProcess[] = [];
    const natsFlags = () => ['--nats', nats.url];
    const gateway = async (...flags: string[]) => {
      const server = await startServer([...natsFlags(), ...flags]);
      running.push(server);
      return server;
    };
    const instance = async (...flags: string[]) => {
      const member = await startInstance([...natsFlags(), ...flags]);
      running.push(member);
      return member;
    };
    /** Streams of all kinds, once each. */
    const streams = (server: RunningServer, tokens = longTokens) =>
      kinds.map((kind) => new Stream(server, kind, tokens));
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
    const kinds = [1, 2, 3, 4];
    /** Long enough that a process is killed while they run. */
    const longTokens = 250;
    let [one, two]: RunningServer[] = [];
    let expected: readonly Answer[] = [];

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
    });
    afterAll(async () => {
      for (const { process } of running) process.kill('SIGKILL');
      await nats.stop();
    });

    it('responds 503 until an instance has joined, then gives the same answers at every gateway', async () => {
      one = await gateway();
      const early = await fetch(`${one.url}/v1/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model, prompt: 'Hi' }),
      });
      expect(early.status).toBe(503);
      const unready = await fetch(`${one.url}/ready`);
      expect(unready.status).toBe(503);
      expect(await unready.json()).toEqual({ status: 'incomplete', message: 'no instance has joined the cluster' });
      expect(await early.json()).toMatchObject({ error: { code: 'not_ready' } });
      const server = one;
      [two] = await Promise.all([gateway(), instance('--name', 'a'), instance('--name', 'b')]);
      await until(async () => (await health(server)) === 2);
      expected = await answers(streams(one));
      for (const { tokens, reason } of expected)
        expect({ tokens, reason }).toEqual({ tokens: longTokens, reason: 'length' });
      await until(async () => (await health(two ?? server)) === 2);
      expect(await answers(streams(two))).toEqual(expected);
    });

    it.each([
      [['--weights', 'bf16'], 'the cluster has weights native, this one has bf16'],
      [['--model', 'test/data/nothing.gguf'], 'nothing.gguf'],
      [['--token', 'given to this one alone'], 'it has another token than this one was given'],
      [['--role', 'cook'], 'cook'],
      [['--cluster', 'a.b'], 'Cannot use --cluster a.b'],
    ])('refuses an instance with %s in one line', async (flags, why) => {
      await expect(instance(...flags)).rejects.toThrow(why);
    });

    it('continues when the NATS server is killed and restarts', async () => {
      if (one === undefined) throw new Error('No gateway');
      const requests = streams(one);
      await Promise.all(requests.map(({ begun }) => begun));
      const server = one;
      const ready = async () => (await fetch(`${server.url}/ready`)).json();
      expect(await ready()).toEqual({ status: 'ready' });
      await nats.kill();
      await until(async () => ((await ready()) as { status: string }).status === 'unreachable');
      await nats.start();
      await until(async () => ((await ready()) as { status: string }).status === 'ready');
      expect(await answers(requests)).toEqual(expected);
      expect(await answers(streams(one))).toEqual(expected);
    });

    it('finishes the requests of a paused instance elsewhere; the instance rejoins without them', async () => {
      if (one === undefined || two === undefined) throw new Error('No gateway');
      const [server, paused] = [one, running.find(({ output }) => output().includes('Joined as a'))];
      const requests = streams(one);
      await Promise.all(requests.map(({ begun }) => begun));
      paused?.process.kill('SIGSTOP');
      expect(await answers(requests)).toEqual(expected);
      await until(async () => (await health(server)) === 1);
      paused?.process.kill('SIGCONT');
      await until(async () => (await health(server)) === 2 && (await idle(server)));
      expect(await answers(streams(one))).toEqual(expected);
    });

    it('retries the requests of a killed instance elsewhere, and uses the instance again after its restart', async () => {
      if (one === undefined) throw new Error('No gateway');
      const [server, killed] = [one, running.find(({ output }) => output().includes('Joined as b'))];
      const requests = [...streams(one), ...streams(two ?? one)];
      await Promise.all(requests.map(({ begun }) => begun));
      killed?.process.kill('SIGKILL');
      expect(await answers(requests)).toEqual([...expected, ...expected]);
      await instance('--name', 'b');
      await until(async () => (await health(server)) === 2);
      expect(await answers(streams(one))).toEqual(expected);
    });

    it('fails no request of either gateway while all processes restart one after another', async () => {
      if (one === undefined || two === undefined) throw new Error('No gateway');
      const gateways = [one, two];
      const restart = async (stopped: RunningProcess, start: () => Promise<void>) => {
        const requests = gateways.map((server) => new Stream(server, 1, longTokens));
        await Promise.all(requests.map(({ begun }) => begun));
        const exited = stopped.stop();
        // New requests go to gateways that are ready, as behind a load balancer.
        const others = gateways.filter((server) => server !== stopped);
        requests.push(...others.map((server) => new Stream(server, 1, longTokens)));
        for (const answer of await answers(requests)) expect(answer).toEqual(expected[0]);
        expect(await exited).toBe(0);
        await start();
        for (const server of gateways) await until(async () => (await health(server)) === 2);
      };
      for (const name of ['a', 'b']) {
        const member = running.findLast(({ output }) => output().includes(`Joined as ${name}`));
        if (member === undefined) throw new Error(`${name} has not joined`);
        await restart(member, async () => void (await instance('--name', name)));
      }
      for (const i of gateways.keys())
        await restart(gateways[i], async () => {
          gateways[i] = await gateway();
        });
      [one, two] = gateways;
    });

    it('cancels the requests of a killed gateway everywhere, and serves the other gateway', async () => {
      if (one === undefined || two === undefined) throw new Error('No gateway');
      const [killed, other] = [one, two];
      const before = await metric(other, 'kvasir_generated_tokens_total');
      const cancelled = streams(killed, 8_000);
      for (const { answer } of cancelled) answer.catch(() => {});
      await Promise.all(cancelled.map(({ begun }) => begun));
      const kept = streams(other);
      killed.process.kill('SIGKILL');
      expect(await answers(kept)).toEqual(expected);
      await until(() => idle(other));
      const generated = (await metric(other, 'kvasir_generated_tokens_total')) - before;
      expect(generated).toBeLessThan(8_000 * kinds.length);
    });

    it('retries running requests elsewhere when an instance is stopped, and fails them when no instance is left', async () => {
      if (two === undefined) throw new Error('No gateway');
      const server = await gateway('--request-timeout', '1');
      const requests = streams(two);
      await Promise.all(requests.map(({ begun }) => begun));
      const members = running.filter(
        ({ output, process }) =>
          output().includes('Joined as') && process.exitCode === null && process.signalCode === null,
      );
      expect(members).toHaveLength(2);
      expect(await members[0]?.stop()).toBe(0);
      expect(await answers(requests)).toEqual(expected);
      const last = new Stream(server, 1, 8_000);
      await last.begun;
      expect(await members[1]?.stop()).toBe(0);
      expect((await last.answer).error).toContain('it has not ended in time: 1 s');
      expect(await server.stop()).toBe(0);
    });
  });
}
