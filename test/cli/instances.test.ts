// Several instances by flag and by YAML file.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { readOptions, serveOptionsSchema } from '../../src/cli/options.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-instances-'));
afterAll(() => rmSync(folder, { recursive: true }));

function read(yaml: string) {
  const config = join(folder, 'cluster.yaml');
  writeFileSync(config, yaml);
  return readOptions(serveOptionsSchema, { config }).instances;
}

test('instances are a number of equal ones, or a list of what sets each apart', () => {
  expect(readOptions(serveOptionsSchema, {}).instances).toEqual([{}]);
  expect(readOptions(serveOptionsSchema, { instances: '3' }).instances).toEqual([{}, {}, {}]);
  expect(read('instances: 2')).toEqual([{}, {}]);
  const list = 'instances:\n  - {threads: 2, kv-memory: 1g}\n  - {kvMemory: 512m}\n';
  expect(read(list)).toEqual([{ threads: 2, kvMemory: 2 ** 30 }, { kvMemory: 2 ** 29 }]);
});

test.each(['instances: 0', 'instances: []', 'instances: [{gpus: 1}]', 'instances: [{threads: 0}]', 'instances: 65'])(
  'refused: %s',
  (yaml) => {
    expect(() => read(yaml)).toThrow('Cannot use --instances');
  },
);
