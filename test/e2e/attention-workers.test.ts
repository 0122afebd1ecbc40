// A server with attention workers: completions equal those of a server without, and the metrics show the workers.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';
import { loadNative } from '../../src/kernel/native/addon.ts';
import { livePrompt } from '../runtime/threads/instances.ts';
import { metric, metricSum, type RunningServer, startServer } from './server.ts';

const command = join(root, 'bundle', 'cli', 'main.js');
const servers: RunningServer[] = [];
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.stop()));
});

/** A server without attention workers, for all tests, and what it answers: its answers depend on no request before. */
const single: { server?: Promise<RunningServer>; completions?: Promise<readonly unknown[]> } = {};
afterAll(async () => (await single.server)?.stop());

function serveSingle(): Promise<RunningServer> {
  single.server ??= startServer(['--threads', '1']);
  return single.server;
}

async function expectedCompletions(): Promise<readonly unknown[]> {
  single.completions ??= serveSingle().then(completionsOf);
  return single.completions;
}

const expectedStream = async (prompt: readonly number[]) => streamOf(await serveSingle(), prompt);

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
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'kvasir-tiny-q8_0', ...body }),
    });
    const { choices } = (await response.json()) as { readonly choices: unknown };
    return choices;
  };
  const long = livePrompt(1, 1_400);
  const first = await Promise.all([complete(long, 1), complete(livePrompt(2, 40), 2), complete(livePrompt(3, 300), 3)]);
  return [...first, await complete(long.slice(0, 1_000), 4)];
}

/** The texts of a streamed completion, token by token. */
async function streamOf(
  server: RunningServer,
  prompt: readonly number[],
  onToken: (count: number) => Promise<void> = async () => {},
): Promise<readonly string[]> {
  const body = { model: 'kvasir-tiny-q8_0', prompt, max_tokens: 400, ignore_eos: true, temperature: 0, stream: true };
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const tokens: string[] = [];
  let text = '';
  for await (const part of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
    text += part;
    const lines = text.split('\n');
    text = lines.pop() ?? '';
    for (const line of lines) {
      if (!line.startsWith('data: {')) continue;
      tokens.push(JSON.parse(line.slice(6)).choices[0].text);
      await onToken(tokens.length);
    }
  }
  return tokens;
}

describe.skipIf(loadNative() === undefined)('serve --dop (needs the native kernels)', () => {
  it('answers with the bits of one instance, and counts calls of each attention worker', async () => {
    const expected = await expectedCompletions();
    const server = await serve('--dop', '1,2');
    expect(await completionsOf(server)).toEqual(expected);
    const steps = (await metric(server, 'kvasir_steps_total')) ?? 0;
    // kvasir-tiny has six layers.
    expect(await metricSum(server, 'kvasir_attention_worker_calls_total')).toBe(2 * 6 * steps);
    expect(await metricSum(server, 'kvasir_attention_worker_up')).toBe(2);
    expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
  });

  it('answers with the same bits over three model workers, whose threads share the weights', async () => {
    const expected = await expectedCompletions();
    expect(await completionsOf(await serve('--dop', '3,2'))).toEqual(expected);
  });

  it.each(['1'])(
    'by requests in %s batches, has the bits of one instance, though a worker is killed',
    async (batches) => {
      const [expected, stream] = [await expectedCompletions(), await expectedStream(livePrompt(1, 300))];
      const flags = ['--dop', '1,3', '--partition', 'requests', '--attention-workers', 'processes'];
      const server = await serve(...flags, '--kv-memory', '96m', '--staggered-batches', batches);
      expect(await completionsOf(server)).toEqual(expected);
      const pid = [...server.output().matchAll(/Attention worker 1\/3 listens at \S+ as process (\d+)/g)].at(-1)?.[1];
      const [first, second] = await Promise.all([
        streamOf(server, livePrompt(1, 300), async (count) => {
          if (count === 100) process.kill(Number(pid), 'SIGKILL');
        }),
        streamOf(server, livePrompt(1, 300)),
      ]);
      expect([first, second]).toEqual([stream, stream]);
      expect(await metricSum(server, 'kvasir_attention_worker_losses_total')).toBe(1);
      expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
    },
  );

  it('answers with the same bits over two staggered batches, in more calls of the same size', async () => {
    const expected = await expectedCompletions();
    const server = await serve('--dop', '1,2', '--staggered-batches', '2');
    expect(await completionsOf(server)).toEqual(expected);
    const steps = (await metric(server, 'kvasir_steps_total')) ?? 0;
    const calls = (await metricSum(server, 'kvasir_attention_worker_calls_total')) ?? 0;
    // Steps of several sequences call every layer twice.
    expect(calls).toBeGreaterThan(2 * 6 * steps);
    expect(calls).toBeLessThan(2 * 2 * 6 * steps);
    expect(calls % (2 * 6)).toBe(0);
    expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
    // A step of the model worker cannot wait longer than it runs.
    const waited = (await metricSum(server, 'kvasir_attention_worker_wait_seconds_total')) ?? 0;
    const ran = (await metric(server, 'kvasir_step_seconds_total')) ?? 0;
    expect(waited).toBeLessThan(ran);
  });

  it.each(['2'])(
    'gives the same tokens if the process of an attention worker is killed during streams, in %s batches',
    async (batches) => {
      const prompt = livePrompt(1, 300);
      const expected = await expectedStream(prompt);
      const second = await expectedStream(livePrompt(2, 200));
      const server = await serve('--dop', '1,2', '--attention-workers', 'processes', '--staggered-batches', batches);
      const other = streamOf(server, livePrompt(2, 200));
      const pidOf = () =>
        [...server.output().matchAll(/Attention worker 2\/2 listens at \S+ as process (\d+)/g)].at(-1)?.[1];
      const first = pidOf();
      const tokens = streamOf(server, prompt, async (count) => {
        if (count === 100) process.kill(Number(first), 'SIGKILL');
      });
      expect(await tokens).toEqual(expected);
      expect(await other).toEqual(second);
      expect(await metricSum(server, 'kvasir_attention_worker_losses_total')).toBe(1);
      expect(await metricSum(server, 'kvasir_attention_worker_up')).toBe(2);
      expect(pidOf()).not.toBe(first);
      expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
    },
  );

  it.each([
    ['1', 'threads'],
    ['2', 'processes'],
  ])(
    'decodes prompts of a prefill instance with the bits of one instance, in %s batches over attention workers as %s',
    async (batches, where) => {
      const expected = await expectedCompletions();
      const config = join(root, 'test', 'e2e', 'prefill-apart.yaml');
      const server = await serve('--config', config, '--staggered-batches', batches, '--attention-workers', where);
      expect(await completionsOf(server)).toEqual(expected);
      const view = await (await fetch(`${server.url}/api/cluster`)).json();
      const { instances } = view as { instances: readonly { computed_prompt_tokens: number; sent_bytes: number }[] };
      // All prompts were computed by the prefill instance, and the decode instance has computed no row of a prompt.
      expect(instances[1]?.computed_prompt_tokens).toBe(0);
      expect(instances[0]?.sent_bytes).toBeGreaterThan(0);
      // A page of kvasir-tiny has 16 KiB, and each of two workers pulls half of it.
      const pages = (await metricSum(server, 'kvasir_attention_worker_pulled_pages_total')) ?? 0;
      expect(pages).toBeGreaterThan(0);
      expect(await metricSum(server, 'kvasir_attention_worker_pulled_bytes_total')).toBe(8192 * pages);
      expect(await metricSum(server, 'kvasir_attention_worker_calls_total')).toBeGreaterThan(0);
      expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
    },
  );

  it('frees all pages of prompts that are cancelled on their way to the attention workers', async () => {
    const prompt = livePrompt(7, 900);
    const expected = await expectedStream(prompt);
    const server = await serve('--config', join(root, 'test', 'e2e', 'prefill-apart.yaml'));
    const cancelled = Array.from({ length: 16 }, async (_, i) => {
      const body = { model: 'kvasir-tiny-q8_0', prompt: livePrompt(10 + i, 900), max_tokens: 50, ignore_eos: true };
      const signal = AbortSignal.timeout(40 * i);
      await fetch(`${server.url}/v1/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal,
      }).then(
        (response) => response.text(),
        () => undefined,
      );
    });
    await Promise.allSettled(cancelled);
    const memory = async () => {
      const { instances } = (await (await fetch(`${server.url}/api/cluster`)).json()) as {
        instances: readonly { pages: { used: number }; landing_pages: { total: number; free: number } | null }[];
      };
      return instances.map(({ pages, landing_pages: landing }) => [
        pages.used,
        landing && landing.total - landing.free,
      ]);
    };
    await expect.poll(memory, { timeout: 20_000 }).toEqual([
      [0, 0],
      [0, 0],
    ]);
    expect(await streamOf(server, prompt)).toEqual(expected);
  });

  it.each([
    ['--dop 1,3', '3 attention workers: they cannot share 2 KV heads equally: use --partition requests'],
    ['--dop 1,2 --borrow', 'pages at attention workers cannot be lent'],
  ])('is refused in one line with %s', async (flags, why) => {
    const child = spawnSync(process.execPath, [command, 'serve', '--port', '0', ...flags.split(' ')], {
      encoding: 'utf8',
    });
    expect(child.status).not.toBe(0);
    expect(child.stderr.trim().split('\n').at(-1)).toContain(why);
  });
});
