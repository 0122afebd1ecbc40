// Gateways and instances in processes of their own, over a real NATS server, while any of them dies, pauses, or comes back.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NatsServer, natsInstalled } from '../live/bus/nats-server.ts';
import { metric, type RunningProcess, type RunningServer, startInstance, startServer, until } from './server.ts';

const model = 'kvasir-tiny-q8_0';

interface Answer {
  readonly text: string;
  readonly tokens: number;
  readonly reason: string | undefined;
  readonly error: string | undefined;
}

/** One streamed completion: what came so far, and all of it. */
class Stream {
  text = '';
  readonly answer: Promise<Answer>;
  #begun: () => void = () => {};
  /** Resolves with the first text. */
  readonly begun = new Promise<void>((resolve) => {
    this.#begun = resolve;
  });

  constructor(gateway: RunningServer, kind: number, maxTokens: number) {
    this.answer = this.#read(gateway, kind, maxTokens);
  }

  async #read(gateway: RunningServer, kind: number, maxTokens: number): Promise<Answer> {
    const sampled = { temperature: 0.8, seed: kind, max_tokens: maxTokens, ignore_eos: true };
    const response = await fetch(`${gateway.url}/v1/completions`, {
      method: 'POST',
      body: JSON.stringify({
        ...{ model, prompt: `Story ${kind}: once upon a time`, stream: true, ...sampled },
        stream_options: { include_usage: true },
      }),
    });
    let [buffer, tokens, reason, error]: [string, number, string | undefined, string | undefined] = [
      '',
      0,
      undefined,
      undefined,
    ];
    const decoder = new TextDecoder();
    for await (const bytes of response.body ?? []) {
      buffer += decoder.decode(bytes, { stream: true });
      const lines = buffer.split('\n');
      buffer = lines.pop() ?? '';
      for (const line of lines) {
        if (!line.startsWith('data: {')) continue;
        const chunk = JSON.parse(line.slice(6));
        this.text += chunk.choices?.[0]?.text ?? '';
        reason = chunk.choices?.[0]?.finish_reason ?? reason;
        tokens = chunk.usage?.completion_tokens ?? tokens;
        error = chunk.error?.message ?? error;
        if (this.text !== '') this.#begun();
      }
    }
    return { text: this.text, tokens, reason, error };
  }
}

async function health(gateway: RunningServer): Promise<number> {
  const { instances } = (await (await fetch(`${gateway.url}/health`)).json()) as { instances: { ready: number } };
  return instances.ready;
}

const idle = async (gateway: RunningServer) =>
  (await metric(gateway, 'kvasir_requests_running')) === 0 && (await metric(gateway, 'kvasir_kv_pages_used')) === 0;

if (!natsInstalled && process.env.CI === undefined) {
  it.skip('a cluster over NATS: needs nats-server', () => {});
} else {
  describe('a cluster', { timeout: 120_000 }, () => {
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
    const streams = (server: RunningServer, tokens: number) => kinds.map((kind) => new Stream(server, kind, tokens));
    const answers = (all: readonly Stream[]) => Promise.all(all.map(({ answer }) => answer));
    const kinds = [1, 2, 3, 4];
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
      expect(await early.json()).toMatchObject({ error: { code: 'not_ready' } });
      const server = one;
      [two] = await Promise.all([gateway(), instance('--name', 'a'), instance('--name', 'b')]);
      await until(async () => (await health(server)) === 2);
      expected = await answers(streams(one, 300));
      for (const { tokens, reason } of expected) expect({ tokens, reason }).toEqual({ tokens: 300, reason: 'length' });
      await until(async () => (await health(two ?? server)) === 2);
      expect(await answers(streams(two, 300))).toEqual(expected);
    });

    it.each([
      [['--weights', 'bf16'], 'the cluster has weights native, this one has bf16'],
      [['--model', 'test/data/nothing.gguf'], 'nothing.gguf'],
      [['--role', 'prefill'], 'Cannot use --role prefill'],
      [['--cluster', 'a.b'], 'Cannot use --cluster a.b'],
    ])('refuses an instance with %s in one line', async (flags, why) => {
      await expect(instance(...flags)).rejects.toThrow(why);
    });

    it('goes on when the NATS server is killed and comes back', async () => {
      if (one === undefined) throw new Error('no gateway');
      const under = streams(one, 300);
      await Promise.all(under.map(({ begun }) => begun));
      await nats.kill();
      await nats.start();
      expect(await answers(under)).toEqual(expected);
      expect(await answers(streams(one, 300))).toEqual(expected);
    });

    it('finishes elsewhere what was on an instance that is paused, which then comes back with nothing of it', async () => {
      if (one === undefined || two === undefined) throw new Error('no gateway');
      const [server, paused] = [one, running.find(({ output }) => output().includes('Joined as a'))];
      const under = streams(one, 300);
      await Promise.all(under.map(({ begun }) => begun));
      paused?.process.kill('SIGSTOP');
      expect(await answers(under)).toEqual(expected);
      await until(async () => (await health(server)) === 1);
      paused?.process.kill('SIGCONT');
      await until(async () => (await health(server)) === 2 && (await idle(server)));
      expect(await answers(streams(one, 300))).toEqual(expected);
    });

    it('finishes elsewhere what was on an instance that is killed, and takes it back when it is started anew', async () => {
      if (one === undefined) throw new Error('no gateway');
      const [server, killed] = [one, running.find(({ output }) => output().includes('Joined as b'))];
      const under = [...streams(one, 300), ...streams(two ?? one, 300)];
      await Promise.all(under.map(({ begun }) => begun));
      killed?.process.kill('SIGKILL');
      expect(await answers(under)).toEqual([...expected, ...expected]);
      await instance('--name', 'b');
      await until(async () => (await health(server)) === 2);
      expect(await answers(streams(one, 300))).toEqual(expected);
    });

    it('cancels everywhere what a killed gateway had, and the other one goes on', async () => {
      if (one === undefined || two === undefined) throw new Error('no gateway');
      const [dying, living] = [one, two];
      const lost = streams(dying, 8_000);
      for (const { answer } of lost) answer.catch(() => {});
      await Promise.all(lost.map(({ begun }) => begun));
      const kept = streams(living, 300);
      dying.process.kill('SIGKILL');
      expect(await answers(kept)).toEqual(expected);
      await until(() => idle(living));
      expect(await metric(living, 'kvasir_generated_tokens_total')).toBeLessThan(8_000 * kinds.length);
    });

    it('hands on what runs when an instance is stopped, and fails what nobody is left for', async () => {
      if (two === undefined) throw new Error('no gateway');
      const server = await gateway('--request-timeout', '1');
      const under = streams(two, 300);
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
