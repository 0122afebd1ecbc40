// Gateways and instances in processes of their own, over a real NATS server, while any of them dies, pauses, or comes back.
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
    const where = () => ['--nats', nats.url];
    const gateway = async (...flags: string[]) => {
      const server = await startServer([...where(), ...flags]);
      running.push(server);
      return server;
    };
    const instance = async (...flags: string[]) => {
      const member = await startInstance([...where(), ...flags]);
      running.push(member);
      return member;
    };
    /** Streams of all kinds, once each. */
    const streams = (server: RunningServer, tokens = longTokens) =>
      kinds.map((kind) => new Stream(server, kind, tokens));
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
    const kinds = [1, 2, 3, 4];
    /** They run for longer than a kill takes. */
    const longTokens = 400;
    let [one, two]: RunningServer[] = [];
    let expected: readonly Answer[] = [];

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
    });
    afterAll(async () => {
      for (const { process } of running) process.kill('SIGKILL');
      await nats.stop();
    });

    it('answers 503 until an instance has joined, then as instances of any gateway do', async () => {
      one = await gateway();
      const early = await fetch(`${one.url}/v1/completions`, {
        method: 'POST',
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

    it('goes on when the NATS server is killed and comes back', async () => {
      if (one === undefined) throw new Error('no gateway');
      const under = streams(one);
      await Promise.all(under.map(({ begun }) => begun));
      const server = one;
      const ready = async () => (await fetch(`${server.url}/ready`)).json();
      expect(await ready()).toEqual({ status: 'ready' });
      await nats.kill();
      await until(async () => ((await ready()) as { status: string }).status === 'unreachable');
      await nats.start();
      await until(async () => ((await ready()) as { status: string }).status === 'ready');
      expect(await answers(under)).toEqual(expected);
      expect(await answers(streams(one))).toEqual(expected);
    });

    it('finishes elsewhere what was on an instance that is paused, which then comes back with nothing of it', async () => {
      if (one === undefined || two === undefined) throw new Error('no gateway');
      const [server, paused] = [one, running.find(({ output }) => output().includes('Joined as a'))];
      const under = streams(one);
      await Promise.all(under.map(({ begun }) => begun));
      paused?.process.kill('SIGSTOP');
      expect(await answers(under)).toEqual(expected);
      await until(async () => (await health(server)) === 1);
      paused?.process.kill('SIGCONT');
      await until(async () => (await health(server)) === 2 && (await idle(server)));
      expect(await answers(streams(one))).toEqual(expected);
    });

    it('retries the requests of a killed instance elsewhere, and uses the instance again after its restart', async () => {
      if (one === undefined) throw new Error('no gateway');
      const [server, killed] = [one, running.find(({ output }) => output().includes('Joined as b'))];
      const under = [...streams(one), ...streams(two ?? one)];
      await Promise.all(under.map(({ begun }) => begun));
      killed?.process.kill('SIGKILL');
      expect(await answers(under)).toEqual([...expected, ...expected]);
      await instance('--name', 'b');
      await until(async () => (await health(server)) === 2);
      expect(await answers(streams(one))).toEqual(expected);
    });

    it('cancels everywhere what a killed gateway had, and the other one goes on', async () => {
      if (one === undefined || two === undefined) throw new Error('no gateway');
      const [dying, living] = [one, two];
      const before = await metric(living, 'kvasir_generated_tokens_total');
      const lost = streams(dying, 8_000);
      for (const { answer } of lost) answer.catch(() => {});
      await Promise.all(lost.map(({ begun }) => begun));
      const kept = streams(living);
      dying.process.kill('SIGKILL');
      expect(await answers(kept)).toEqual(expected);
      await until(() => idle(living));
      const generated = (await metric(living, 'kvasir_generated_tokens_total')) - before;
      expect(generated).toBeLessThan(8_000 * kinds.length);
    });

    it('hands over running requests when an instance is stopped, and fails them when no instance is left', async () => {
      if (two === undefined) throw new Error('no gateway');
      const server = await gateway('--request-timeout', '1');
      const under = streams(two);
      await Promise.all(under.map(({ begun }) => begun));
      const members = running.filter(
        ({ output, process }) =>
          output().includes('Joined as') && process.exitCode === null && process.signalCode === null,
      );
      expect(members).toHaveLength(2);
      expect(await members[0]?.stop()).toBe(0);
      expect(await answers(under)).toEqual(expected);
      const last = new Stream(server, 1, 8_000);
      await last.begun;
      expect(await members[1]?.stop()).toBe(0);
      expect((await last.answer).error).toContain('it has not ended in time: 1 s');
      expect(await server.stop()).toBe(0);
    });
  });
}
