// The overhead bench against a scripted server: pairs of engine steps and completions, on a scripted clock.
import { expect, test } from 'vitest';
import { benchOverhead } from '../../src/bench/http/overhead.ts';
import { event, scriptedServer, token, usage } from './scripted-server.ts';

test('a row for the prefill and for each number of streams, with differences and ratios within a round', async () => {
  let nowMs = 0;
  // Every read of the clock is 10 ms after the one before it.
  const now = (): number => (nowMs += 10);
  const server = await scriptedServer((response, { prompt, max_tokens: outputs }) => {
    response.writeHead(200).end(token().repeat(outputs) + usage(prompt.length, outputs) + event('[DONE]'));
  });
  const steps: unknown[] = [];
  const engine = {
    prefill: (tokens: number) => [steps.push(['prefill', tokens]) && 4],
    decode: (batch: number, depth: number, count: number) => [steps.push(['decode', batch, depth, count]) && 5],
  };
  const sizes = { prompt: 9, batch: [1], depth: 4, generate: 3 };
  const { rounds, rows } = await benchOverhead(engine, { url: server.url, rounds: 2, ...sizes, now });
  await server.close();
  expect(rounds).toBe(2);
  expect(rows.map(({ row }) => row)).toEqual(['prefill of 9', 'decode of 1']);
  const [prefill, decode] = rows;
  expect(prefill).toMatchObject({ engineMs: 4, overheadMs: prefill.httpMs - 4 });
  expect(decode).toEqual({ row: 'decode of 1', engineMs: 5, httpMs: 10, overheadMs: 5, ratio: 2 });
  expect(steps.slice(0, 2)).toEqual([
    ['prefill', 9],
    ['decode', 1, 4, 3],
  ]);
  // An untimed round comes first.
  expect(steps).toHaveLength(6);
  expect(server.requests.map(({ prompt, max_tokens: outputs }) => [prompt.length, outputs]).slice(0, 2)).toEqual([
    [9, 1],
    [4, 3],
  ]);
});

test('a failed completion ends the bench with its status', async () => {
  const server = await scriptedServer((response) => void response.writeHead(429).end());
  const engine = { prefill: () => [1], decode: () => [1] };
  const options = { url: server.url, rounds: 1, prompt: 1, batch: [1], depth: 1, generate: 1 };
  await expect(benchOverhead(engine, options)).rejects.toThrow('a completion failed: status 429');
  await server.close();
});
