// A server with attention workers: completions equal those of a server without, and the metrics show the workers.
import { afterEach, describe, expect, it } from 'vitest';
import { loadNative } from '../../src/kernel/native/addon.ts';
import { livePrompt } from '../runtime/threads/instances.ts';
import { metric, metricSum, type RunningServer, startServer } from './server.ts';

const servers: RunningServer[] = [];
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.stop()));
});

async function serve(...flags: string[]): Promise<RunningServer> {
  const server = await startServer(['--threads', '1', ...flags]);
  servers.push(server);
  return server;
}

/** Concurrent completions with log-probabilities: a long prompt in chunks, its prefix again, and short ones. */
async function completionsOf(server: RunningServer): Promise<readonly unknown[]> {
  const complete = async (prompt: readonly number[], seed: number): Promise<unknown> => {
    const body = { prompt, max_tokens: 24, ignore_eos: true, temperature: 0.8, seed, logprobs: 2 };
    const response = await fetch(`${server.url}/v1/completions`, {
      method: 'POST',
      body: JSON.stringify({ model: 'kvasir-tiny-q8_0', ...body }),
    });
    const { choices } = (await response.json()) as { readonly choices: unknown };
    return choices;
  };
  const long = livePrompt(1, 1_400);
  const first = await Promise.all([complete(long, 1), complete(livePrompt(2, 40), 2), complete(livePrompt(3, 300), 3)]);
  return [...first, await complete(long.slice(0, 1_000), 4)];
}

describe.skipIf(loadNative() === undefined)('serve --dop (needs the native kernels)', () => {
  it('answers with the bits of one instance, and counts calls of each attention worker', async () => {
    const expected = await completionsOf(await serve());
    const server = await serve('--dop', '1,2');
    expect(await completionsOf(server)).toEqual(expected);
    const steps = (await metric(server, 'kvasir_steps_total')) ?? 0;
    // kvasir-tiny has six layers.
    expect(await metricSum(server, 'kvasir_attention_worker_calls_total')).toBe(2 * 6 * steps);
    expect(await metricSum(server, 'kvasir_attention_worker_early_seconds_total')).toBeGreaterThan(0);
    expect(await metricSum(server, 'kvasir_attention_worker_up')).toBe(2);
    expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
  });
});
