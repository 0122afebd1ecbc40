// Traces: every request exports spans under the trace of its caller, and serving does not depend on the collector.
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type RunningServer, startServer, until } from './server.ts';

interface SpanBody {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly { readonly key: string; readonly value: Record<string, unknown> }[];
  readonly status: { readonly code?: number };
}

const spans: SpanBody[] = [];
const received: { path: string | undefined; token: unknown }[] = [];
let collector: Server;
let server: RunningServer;

beforeAll(async () => {
  collector = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      received.push({ path: request.url, token: request.headers['x-token'] });
      const body = JSON.parse(Buffer.concat(pieces).toString()) as {
        resourceSpans: { scopeSpans: { spans: SpanBody[] }[] }[];
      };
      for (const { scopeSpans } of body.resourceSpans) for (const scope of scopeSpans) spans.push(...scope.spans);
      response.setHeader('content-type', 'application/json').end('{}');
    });
  });
  await new Promise<void>((resolve) => collector.listen(0, '127.0.0.1', resolve));
  const { port } = collector.address() as AddressInfo;
  const flags = ['--config', 'test/e2e/apart.yaml', '--threads', '3', '--context', '512', '--kv-memory', '32m'];
  server = await startServer([...flags, '--otlp-endpoint', `http://127.0.0.1:${port}`], {
    OTEL_EXPORTER_OTLP_HEADERS: 'x-token=a%20b',
  });
});
afterAll(async () => {
  await server.stop();
  await new Promise((resolve) => collector.close(resolve));
});

const traceId = '4bf92f3577b34da6a3ce929d0e0e4736';
const parentId = '00f067aa0ba902b7';

function complete(body: object, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'kvasir-tiny-q8_0', temperature: 0, ignore_eos: true, ...body }),
  });
}

const prompt = Array.from({ length: 300 }, (_, i) => 5 + ((i * 11) % 400));

it('has one span for the request under its caller, and one for each phase, chunk and step below', async () => {
  const response = await complete({ prompt, max_tokens: 5 }, { traceparent: `00-${traceId}-${parentId}-01` });
  expect(response.status).toBe(200);
  await until(async () => spans.some((span) => span.traceId === traceId));
  const [root, ...parts] = spans.filter((span) => span.traceId === traceId);
  expect(root).toMatchObject({ name: 'generate', kind: 2, parentSpanId: parentId, status: {} });
  expect(root.attributes).toContainEqual({ key: 'gen_ai.usage.input_tokens', value: { intValue: '300' } });
  expect(root.attributes).toContainEqual({ key: 'kvasir.state', value: { stringValue: 'finished' } });
  expect(parts.every((span) => span.parentSpanId === root.spanId)).toBe(true);
  const [from, to] = [BigInt(root.startTimeUnixNano), BigInt(root.endTimeUnixNano)];
  for (const span of [root, ...parts])
    expect(BigInt(span.startTimeUnixNano) <= BigInt(span.endTimeUnixNano)).toBe(true);
  expect(to - from > 0n && to - from < 60_000_000_000n).toBe(true);
  const names = parts.map(({ name }) => name);
  for (const name of ['placement', 'queue', 'prefill', 'hand-off', 'decode', 'chunk']) expect(names).toContain(name);
  const tokensOf = (name: string) =>
    parts
      .filter((span) => span.name === name)
      .map(({ attributes }) => Number(attributes.find(({ key }) => key === 'kvasir.tokens')?.value.intValue));
  expect(tokensOf('chunk').reduce((sum, tokens) => sum + tokens, 0)).toBe(300);
  expect(tokensOf('step')).toEqual([1, 1, 1, 1]);
});

it('exports refusals, cancels, and choices in one trace', async () => {
  const own = 'a'.repeat(32);
  const response = await complete(
    { prompt, max_tokens: 200, n: 2, stream: true },
    { traceparent: `00-${own}-${parentId}-01` },
  );
  await response.body?.cancel();
  await until(async () => spans.filter((span) => span.traceId === own && span.name === 'generate').length === 2);
  const roots = spans.filter((span) => span.traceId === own && span.name === 'generate');
  expect(roots.map(({ status }) => status)).toEqual([
    { code: 2, message: 'cancelled' },
    { code: 2, message: 'cancelled' },
  ]);
});

it('exports no unsampled requests, and starts a trace if there is none', async () => {
  const unsampled = 'b'.repeat(32);
  await complete({ prompt: [5, 6, 7], max_tokens: 1 }, { traceparent: `00-${unsampled}-${parentId}-00` });
  await complete({ prompt: [5, 6, 7], max_tokens: 1 }, { traceparent: 'nonsense' });
  await until(async () => spans.some(({ name, parentSpanId }) => name === 'generate' && parentSpanId === undefined));
  expect(spans.filter((span) => span.traceId === unsampled)).toEqual([]);
  expect(received.every(({ path, token }) => path === '/v1/traces' && token === 'a b')).toBe(true);
});

it('continues to serve without a collector', async () => {
  collector.closeAllConnections();
  await new Promise((resolve) => collector.close(resolve));
  for (let i = 0; i < 3; i++) expect((await complete({ prompt: [5, 6, i], max_tokens: 1 })).status).toBe(200);
  await until(async () => server.output().includes('Cannot export spans'));
  expect((await fetch(`${server.url}/ready`)).status).toBe(200);
});
