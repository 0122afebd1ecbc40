// `kvasir bench` as a command: JSON on the last line of stdout, progress on stderr, exit codes.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

const main = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));

function bench(...args: string[]): {
  code: number | null;
  json: () => Record<string, unknown>;
  err: string;
  out: string;
} {
  const { status, stdout, stderr } = spawnSync(process.execPath, [main, 'bench', ...args], { encoding: 'utf8' });
  const json = (): Record<string, unknown> => JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '');
  return { code: status, json, err: stderr, out: stdout };
}

const smallEngine = ['--prompt', '4', '--generate', '1', '--batch', '1,2', '--depth', '0,3', '--repeats', '1'];

test('engine: the full report for the embedded model', () => {
  const { code, json, err } = bench('engine', ...smallEngine, '--threads', '1', '--json');
  expect(err).toContain('prefill of 4 tokens');
  expect(code).toBe(0);
  expect(json()).toMatchObject({
    model: 'kvasir-tiny-q8_0',
    threads: 1,
    isa: expect.any(String),
    prefill: { tokens: 4, ms: expect.any(Number), tokensPerSecond: expect.any(Number) },
    decode: [
      { batch: 1, depth: 0 },
      { batch: 2, depth: 0 },
      { batch: 1, depth: 3 },
      { batch: 2, depth: 3 },
    ],
  });
});

test('engine: a table without --json', () => {
  const { out } = bench('engine', ...smallEngine);
  expect(out).toMatch(/batch +depth +time \(ms\/step\) +tokens\/s/);
});

test('accuracy: rows by form', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-bench-'));
  const text = join(folder, 'text.txt');
  writeFileSync(text, 'Once upon a time a fox found a lantern.');
  const { json } = bench('accuracy', '--text', text, '--tokens', '5', '--forms', 'native/bf16', '--json');
  rmSync(folder, { recursive: true });
  expect(json()).toMatchObject({
    tokens: 5,
    rows: [{ weights: 'native', inputs: 'bf16', sameTop: expect.any(Number) }],
  });
});

test.each([
  [['engine', '--batch', '0'], 'Cannot use --batch 0'],
  [['engine', '--depth', '1,x'], 'Cannot use --depth 1,x'],
  [['http'], '--url'],
  [['http', '--url', 'nowhere'], 'Cannot use --url nowhere'],
  [['http', '--url', 'http://127.0.0.1:9', '--rows', 'fast'], 'Cannot use --rows fast'],
  [['accuracy', '--text', '/no/such/file'], 'Cannot read text /no/such/file'],
  [['accuracy', '--text', 'x', '--forms', 'q4'], 'Cannot use --forms q4'],
  [['kernel', 'gemm', '--types', 'q2'], 'Cannot use --types q2'],
  [['kernel', 'attention', '--contexts', '0'], 'Cannot use --contexts 0'],
])('bad usage is exit code 2 and one line: %j', (args, message) => {
  const { code, err, out } = bench(...args);
  expect(err).toContain(message);
  expect(err.trimEnd().split('\n').length).toBeLessThanOrEqual(2);
  expect(code).toBe(2);
  expect(out).toBe('');
});

test('placement: synthetic prompts find the blocks of a small index', () => {
  const { code, json } = bench('placement', '--instances', '5', '--blocks', '2000', '--prompts', '30', '--json');
  expect(code).toBe(0);
  expect(json()).toMatchObject({ instances: 5, prompts: 30, decisionUs: { p50: expect.any(Number) } });
});

test('soak: every request has an answer, and nothing is held afterwards', () => {
  const { code, json, err } = bench('soak', '--minutes', '0.03', '--lanes', '12', '--burst', '90', '--json');
  expect(code).toBe(0);
  expect(err).toMatch(/^\d+ s: \d+ requests, \d+ pages used, resident \d/m);
  const report = json();
  expect(report).toMatchObject({ minutes: 0.03, lost: 0, pagesUsedEnd: 0, growth: expect.any(Number) });
  const { requests, completed, cancelled, refused, rejected } = report as Record<string, number>;
  // A burst larger than the queue is refused in part, and the rest is served.
  expect(refused).toBeGreaterThan(0);
  expect(completed).toBeGreaterThan(20);
  expect(requests).toBe((completed ?? 0) + (cancelled ?? 0) + (refused ?? 0) + (rejected ?? 0));
});

test('soak: a model beside an address is bad usage', () => {
  const { code, err } = bench('soak', '--url', 'http://127.0.0.1:1', '--model', 'x');
  expect(code).toBe(2);
  expect(err).toBe('Cannot use --model with --url: the server has its own model\n');
});

test('fleet: the engine itself, a bare proxy and the gateway in front of it', () => {
  const load = ['--rate', '20', '--seconds', '1', '--rounds', '1', '--warm-up', '3'];
  const { code, json, err } = bench('fleet', ...load, '--json');
  expect(code).toBe(0);
  expect(err).toContain('round 1 of 1');
  expect(json()).toMatchObject({
    ...{ rate: 20, prompt: 1000, generate: 8 },
    rows: ['the engine itself', 'a bare proxy', 'the gateway'].map((through) => ({
      ...{ through, n: 20, cpuMs: expect.any(Number), firstMs: { p50: expect.any(Number) } },
      addedMs: { p50: expect.any(Number), p99: expect.any(Number) },
    })),
  });
});
