// Two processes that owe each other blocks: the gManager settles the cycle, and the outputs stay the same.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { livePrompt } from '../../runtime/threads/instances.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { health, model } from './cluster.ts';

/** 64 blocks of 32 tokens of the embedded model. */
const kvMemory = String(64 * 32 * 6 * 2 * 2 * 64 * 2);
const rules = ['--borrow', '--lend-share', '0.9', '--low-water', '0.1', '--settle-ms', '20', '--lease-ms', '3000'];
// Under sanitizers sequences grow so slowly that none borrows ahead, and without debts there is no cycle to settle.
const isSanitized = process.env.ASAN_OPTIONS !== undefined;
const runs = loadNative() !== undefined && !isSanitized && (natsInstalled || process.env.CI !== undefined);

describe.skipIf(!runs)('processes that owe each other blocks (needs nats-server)', () => {
  const members: RunningProcess[] = [];
  let nats: NatsServer;
  let gateway: RunningServer;

  beforeAll(async () => {
    nats = await NatsServer.start('-js');
    gateway = await startServer(['--nats', nats.url, '--context', '4096']);
    const common = ['--nats', nats.url, '--kv-memory', kvMemory, '--insecure', '--context', '4096', ...rules];
    for (const name of ['a', 'b']) members.push(await startInstance(['--name', name, ...common]));
    await until(async () => (await health(gateway)) === 2);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
  });
  afterAll(async () => {
    for (const { process } of [...members, gateway]) process?.kill('SIGKILL');
    await nats?.stop();
  });

  /** Resolves with the first token; `text` with the whole output. */
  const start = async (prompt: readonly number[], outputs: number): Promise<{ readonly text: Promise<string> }> => {
    const body = { model, prompt, max_tokens: outputs, temperature: 0, ignore_eos: true };
    const response = await fetch(`${gateway.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream: true }),
    });
    const read = (lines: string): string =>
      [...lines.matchAll(/^data: (\{.*)$/gm)]
        .map(([, chunk = '']) => JSON.parse(chunk).choices?.[0]?.text ?? '')
        .join('');
    return { text: response.text().then(read) };
  };
  const settlements = () => metricSum(gateway, 'kvasir_instance_settlements_total');

  it('settle the cycle, and both requests have the output that they have alone', async () => {
    const outputTokens = 900;
    for (let kind = 10; (await settlements()) === 0; kind += 2) {
      // One on each instance. Both grow, and borrow from each other ahead of demand.
      const prompts = [livePrompt(kind, 900), livePrompt(kind + 1, 900)];
      const started = [];
      for (const prompt of prompts) started.push(await start(prompt, outputTokens));
      const outputs = await Promise.all(started.map(({ text }) => text));
      await until(async () => (await metricSum(gateway, 'kvasir_instance_borrowed_blocks')) === 0);
      const [first] = prompts;
      if (first !== undefined && (await settlements()) > 0)
        expect(await (await start(first, outputTokens)).text).toBe(outputs[0]);
    }
    // Every member of a cycle returns blocks.
    expect(await settlements()).toBeGreaterThan(1);
  });
});
