// Several instances by flag and by YAML file.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { readOptions, serveOptionsSchema } from '../../src/cli/options/options.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-instances-'));
afterAll(() => rmSync(folder, { recursive: true }));

function read(yaml: string) {
  const config = join(folder, 'cluster.yaml');
  writeFileSync(config, yaml);
  return readOptions(serveOptionsSchema, { config }).instances;
}

const mixed = { role: 'mixed' };

test('instances are a number of equal ones, or a list of settings', () => {
  expect(readOptions(serveOptionsSchema, {}).instances).toBeUndefined();
  expect(readOptions(serveOptionsSchema, { instances: '3' }).instances).toEqual([mixed, mixed, mixed]);
  expect(read('instances: 2')).toEqual([mixed, mixed]);
  const list = 'instances:\n  - {threads: 2, kv-memory: 1g}\n  - {kvMemory: 512m}\n';
  expect(read(list)).toEqual([
    { ...mixed, threads: 2, kvMemory: 2 ** 30 },
    { ...mixed, kvMemory: 2 ** 29 },
  ]);
  expect(read('instances: [{role: prefill}, {role: decode}]')).toEqual([{ role: 'prefill' }, { role: 'decode' }]);
});

test.each([
  'instances: 0',
  'instances: []',
  'instances: [{gpus: 1}]',
  'instances: [{threads: 0}]',
  'instances: 65',
  'instances: [{role: prefill}]',
  'instances: [{role: decode}, {role: mixed}]',
  'instances: [{role: store}]',
])('refused: %s', (yaml) => {
  expect(() => read(yaml)).toThrow('Cannot use --instances');
});

test.each([
  ['instances: [{role: prefil}, {}]', "[0].role: must be 'mixed', 'prefill', 'decode' or 'store'"],
  ['instances: [{}, {rol: prefill}]', "[1]: has the unknown member 'rol'"],
  ['instances: [{kv-memory: 2q}]', "[0].kv-memory: '2q' is not a size: write 512m or 2g"],
  ['instances: 65', '--instances 65: write a number from 1 to 64, or a list of {role, threads, kv-memory, '],
  ['slo-classes: {chat: {ttft: soon, tbt: 1s}}', 'chat.ttft: write 250ms, 30s, or 10x'],
  ['slo-classes: {chat: {completion: 1s, priority: high}}', 'chat.priority: must be a number'],
  ['slo-classes: {chat: {ttft: 1s}}', '{"chat":{"ttft":"1s"}}: chat: write name=TTFT/TBT or name=COMPLETION, in YAML'],
  ['kv-memory: {a: 1}', '--kv-memory {"a":1}: write 512m or 2g'],
])('names the invalid part: %s', (yaml, message) => {
  expect(() => read(yaml)).toThrow(message);
});
