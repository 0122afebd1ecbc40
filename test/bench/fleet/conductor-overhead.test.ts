// The bench of a fleet's gateway: the engine without a model, the bare proxy and streams at a steady rate.
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { bareProxy } from '../../../src/bench/fleet/bare-proxy.ts';
import { benchConductorOverhead } from '../../../src/bench/fleet/conductor-overhead.ts';
import { FakeEngine } from '../../../src/bench/fleet/fake-engine.ts';
import { timedStreams } from '../../../src/bench/fleet/timed-streams.ts';
import { EngineHttp } from '../../../src/runtime/fleet/engine-http.ts';
import { vllmDialect } from '../../../src/runtime/fleet/vllm-dialect.ts';
import { answerAtOnce, scriptedServer } from '../scripted-server.ts';

const load = { model: 'fake', rate: 200, seconds: 0.05, prompt: 20, generate: 2 };
const closing: (() => void)[] = [];

afterEach(() => {
  for (const close of closing.splice(0)) close();
});

async function engineAndProxy(): Promise<readonly [engine: string, proxy: string]> {
  const engine = new FakeEngine();
  const url = await engine.listen();
  const proxy = bareProxy(url);
  await new Promise<void>((listening) => proxy.listen(0, '127.0.0.1', listening));
  closing.push(() => engine.close());
  closing.push(() => proxy.close().closeAllConnections());
  return [url, `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`];
}

test('a row for each server, with what it adds to the engine itself', async () => {
  const [engine, proxy] = await engineAndProxy();
  const servers = [['engine', engine] as const, ['proxy', proxy] as const];
  const lines: string[] = [];
  const rows = await benchConductorOverhead({
    ...load,
    servers,
    rounds: 2,
    warmUp: 3,
    onProgress: (line) => lines.push(line),
  });
  expect(lines).toEqual(['engine is warm', 'proxy is warm', 'round 1 of 2', 'round 2 of 2']);
  expect(rows.map(({ through, n }) => [through, n])).toEqual([
    ['engine', 20],
    ['proxy', 20],
  ]);
  const [direct, through] = rows;
  expect(direct.addedMs).toEqual({ p50: 0, p99: 0 });
  expect(through.addedMs.p50).toBeCloseTo(through.firstMs.p50 - direct.firstMs.p50, 1);
  for (const { firstMs, wholeMs, cpuMs } of rows) {
    expect(wholeMs.p50).toBeGreaterThanOrEqual(firstMs.p50);
    expect(cpuMs).toBeGreaterThan(0);
  }
});

test('the engine describes itself as vLLM does', async () => {
  const [engine] = await engineAndProxy();
  const http = new EngineHttp(engine, undefined);
  closing.push(() => http.close());
  const described = await vllmDialect.describe(http);
  expect(described).toMatchObject({ models: ['fake'], blockTokens: 16, capacityTokens: 2 ** 24, sources: [undefined] });
});

test('a connection that the server closes while idle is replaced', async () => {
  const server = await scriptedServer((response, request) => {
    response.on('finish', () => response.socket?.end());
    answerAtOnce(response, request);
  });
  closing.push(() => void server.close());
  const times = await timedStreams({ ...load, url: server.url, rate: 20, seconds: 0.1 });
  expect([times.length, server.requests.length]).toEqual([2, 2]);
});

test('a refused completion ends the bench with its answer', async () => {
  const server = await scriptedServer((response) => void response.writeHead(429).end('overloaded'));
  closing.push(() => void server.close());
  await expect(timedStreams({ ...load, url: server.url })).rejects.toThrow(
    /^Cannot bench the fleet: a completion failed: HTTP\/1.1 429/,
  );
});
