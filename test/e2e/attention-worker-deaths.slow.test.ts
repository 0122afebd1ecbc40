// Processes that die or stop: attention workers outlive their model worker and serve the next one; one that stops for
// longer than the deadline is lost, and serves again when it continues.
import { readdirSync } from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../src/kernel/native/addon.ts';
import { livePrompt } from '../runtime/threads/instances.ts';
import { metric, metricSum, type RunningServer, startAttentionWorker, startServer, until } from './server.ts';

const env = { KVASIR_TOKEN: 'a secret of this test' };
const prompt = livePrompt(1, 300);
const killed: (() => void)[] = [];
afterAll(() => {
  for (const kill of killed) kill();
});

async function startWorkers() {
  const workers = await Promise.all(
    ['1/2', '2/2'].map((shard) => startAttentionWorker(['--shard', shard, '--kv-memory', '32m'], env)),
  );
  for (const { process } of workers) killed.push(() => process.kill('SIGKILL'));
  return workers;
}

async function serve(addresses?: readonly string[], ...more: readonly string[]): Promise<RunningServer> {
  const flags = addresses === undefined ? [] : ['--attention-workers', addresses.join(','), ...more];
  const server = await startServer(['--threads', '1', ...flags], env);
  killed.push(() => server.process.kill('SIGKILL'));
  return server;
}

/** The texts of a streamed completion, up to the end of the stream or of the server. */
async function streamOf(
  server: RunningServer,
  onToken: (count: number) => void = () => {},
): Promise<readonly string[]> {
  const body = { model: 'kvasir-tiny-q8_0', prompt, max_tokens: 200, ignore_eos: true, temperature: 0, stream: true };
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const tokens: string[] = [];
  let text = '';
  try {
    for await (const part of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
      text += part;
      const lines = text.split('\n');
      text = lines.pop() ?? '';
      for (const line of lines) {
        if (!line.startsWith('data: {')) continue;
        tokens.push(JSON.parse(line.slice(6)).choices[0].text);
        onToken(tokens.length);
      }
    }
  } catch (error) {
    // The server was killed.
    if (!(error instanceof TypeError)) throw error;
  }
  return tokens;
}

// Most of the time is one wait for the deadline of a stopped worker: the others run beside it.
describe
  .skipIf(loadNative() === undefined)
  .concurrent('attention workers at addresses (need the native kernels)', () => {
    it('free what a killed model worker left, and serve the next one with the tokens of an undisturbed run', async () => {
      const plain = await serve();
      const expected = await streamOf(plain);
      await plain.stop();
      const workers = await startWorkers();
      const addresses = workers.map(({ address }) => address);
      const held = () =>
        workers.flatMap(({ process: { pid } }) =>
          ['task', 'fd'].map((kind) => readdirSync(`/proc/${pid}/${kind}`).length),
        );
      const before = held();
      for (let round = 0; round < 3; round++) {
        const server = await serve(addresses);
        const tokens = await streamOf(server, (count) => {
          if (count === 40 + 20 * round) server.process.kill('SIGKILL');
        });
        expect(tokens.length).toBeLessThan(expected.length);
        expect(tokens).toEqual(expected.slice(0, tokens.length));
      }
      const last = await serve(addresses);
      expect(await streamOf(last)).toEqual(expected);
      expect(await metricSum(last, 'kvasir_attention_worker_losses_total')).toBe(0);
      await last.stop();
      // A thread of the last connection may still be waiting for its end.
      await until(async () => held().every((count, i) => count <= before[i] + 2));
    });

    it('lose a worker that stops for longer than the deadline, and use it again when it continues', async () => {
      const workers = await startWorkers();
      const server = await serve(workers.map(({ address }) => address));
      const expected = await streamOf(server);
      const [, { process: worker }] = workers;
      let stoppedMs = 0;
      const streamed = streamOf(server, (count) => {
        if (count !== 60) return;
        worker.kill('SIGSTOP');
        stoppedMs = Date.now();
      });
      await until(async () => stoppedMs > 0 && (await metricSum(server, 'kvasir_attention_worker_losses_total')) > 0);
      expect(Date.now() - stoppedMs).toBeGreaterThan(15_000);
      worker.kill('SIGCONT');
      expect(await streamed).toEqual(expected);
      expect(await metricSum(server, 'kvasir_attention_worker_up')).toBe(2);
      expect(await metric(server, 'kvasir_kv_pages_used')).toBe(0);
      await server.stop();
    });

    it('share the KV heads of one that does not return, with the tokens of an undisturbed run', async () => {
      const workers = await startWorkers();
      const server = await serve(
        workers.map(({ address }) => address),
        ...['--move-shards-after', '1'],
      );
      const expected = await streamOf(server);
      const pages = (await metric(server, 'kvasir_kv_pages_free')) + (await metric(server, 'kvasir_kv_pages_cached'));
      const tokens = await streamOf(server, (count) => {
        if (count === 60) workers[1].process.kill('SIGKILL');
      });
      expect(tokens).toEqual(expected);
      expect(server.output()).toContain('Attention worker 2 was lost and its shard moves to worker 1');
      expect(await metricSum(server, 'kvasir_attention_worker_up')).toBe(2);
      const left = (await metric(server, 'kvasir_kv_pages_free')) + (await metric(server, 'kvasir_kv_pages_cached'));
      expect(left).toBe(Math.floor(pages / 2));
      expect(await streamOf(server)).toEqual(expected);
      await server.stop();
    });
  });
