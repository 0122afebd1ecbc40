// A store among processes: it keeps the blocks of a killed instance, and finds its own on SSD after a kill.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import {
  metricSum,
  type RunningProcess,
  type RunningServer,
  startInstance,
  startServer,
  startStore,
  until,
} from '../server.ts';
import { idle, model } from './cluster.ts';

/** Long enough that a fetch is predicted to be faster: by the initial estimate, its prefill takes 0.4 s. */
const length = 2490;
const prompt = Array.from({ length }, (_, i) => 300 + ((7 * i) % 90));
const context = ['--context', '2560'];
const wholeBlocks = Math.floor((prompt.length - 1) / 32);
/** A block of kvasir-tiny has 6 pages. */
const blockBytes = 6 * 2 ** 14;

/** An instance has capacity for one of the two prompts. */
const other = Array.from({ length }, (_, i) => 300 + ((11 * i) % 90));

async function complete(
  gateway: RunningServer,
  tokens = prompt,
): Promise<{ readonly text: string; readonly cachedTokens: number }> {
  const response = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model, prompt: tokens, max_tokens: 4, temperature: 0, ignore_eos: true }),
  });
  const { choices, usage } = (await response.json()) as {
    choices: { text: string }[];
    usage: { prompt_tokens_details?: { cached_tokens: number } };
  };
  return { text: choices[0]?.text ?? '', cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0 };
}

/** Waits until the prompt is fetched from the store. Before the gateway has its KV events, the prompt is computed, and another prompt evicts it. */
async function fetchedFromStore(gateway: RunningServer, text: string): Promise<void> {
  await until(async () => {
    const answer = await complete(gateway);
    expect(answer.text).toBe(text);
    if (answer.cachedTokens === 32 * wholeBlocks) return true;
    await complete(gateway, other);
    return false;
  });
}

if (loadNative() === undefined || (!natsInstalled && process.env.CI === undefined)) {
  it.skip('a store among processes: needs nats-server and the native kernels', () => {});
} else {
  describe('a store among processes', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-store-'));
    const processes: RunningProcess[] = [];
    let nats: NatsServer;
    let gateway: RunningServer;
    const track = async (started: Promise<RunningProcess>): Promise<RunningProcess> => {
      const instance = await started;
      processes.push(instance);
      return instance;
    };
    const startComputing = () => track(startInstance(['--nats', nats.url, '--kv-memory', '8m', ...context]));
    const startKeeping = () =>
      track(startStore(['--nats', nats.url, '--host-memory', '16m', '--ssd', folder, '--ssd-size', '64m']));
    /** Resolves when so many processes have joined since the start of the gateway. */
    const joined = (count: number) =>
      until(async () => [...gateway.output().matchAll(/ has joined: /g)].length === count);
    const written = () =>
      until(
        async () => (await metricSum(gateway, 'kvasir_instance_ssd_written_bytes_total')) >= wholeBlocks * blockBytes,
      );

    beforeAll(async () => {
      nats = await NatsServer.start('-js');
      gateway = await startServer(['--nats', nats.url, ...context]);
      processes.push(gateway);
    });
    afterAll(async () => {
      for (const { process } of processes) process.kill('SIGKILL');
      await nats.stop();
      rmSync(folder, { recursive: true });
    });

    it('keeps the prefixes of a killed instance, and its own blocks across a kill', async () => {
      const [store, first] = await Promise.all([startKeeping(), startComputing()]);
      await joined(2);
      const counts = { instances: { total: 1, ready: 1 }, stores: { total: 1, ready: 1 } };
      const counted = async () => (await fetch(`${gateway.url}/health`)).json() as Promise<typeof counts>;
      await until(async () => {
        const { instances, stores } = await counted();
        return instances.ready + (stores?.ready ?? 0) === 2;
      });
      expect(await counted()).toMatchObject(counts);
      expect(gateway.output()).toContain(' has joined: 1 serve');
      expect(gateway.output()).not.toContain(' has joined: 2 serve');
      const { text, cachedTokens } = await complete(gateway);
      expect(cachedTokens).toBe(0);
      await written();
      first.process.kill('SIGKILL');
      const second = await startComputing();
      await joined(3);
      await fetchedFromStore(gateway, text);
      for (const { process } of [store, second]) process.kill('SIGKILL');
      const [again] = await Promise.all([startKeeping(), startComputing()]);
      const [, found] = / \((\d+) of \d+ blocks found\)/.exec(again.output()) ?? [];
      expect(Number(found)).toBeGreaterThanOrEqual(wholeBlocks);
      await joined(5);
      await fetchedFromStore(gateway, text);
      // Only the store has the first prompt when it is paused, and killed.
      await complete(gateway, other);
      again.process.kill('SIGSTOP');
      expect((await complete(gateway)).text).toBe(text);
      again.process.kill('SIGKILL');
      await complete(gateway, other);
      expect((await complete(gateway)).text).toBe(text);
      await until(() => idle(gateway));
    });
  });
}
