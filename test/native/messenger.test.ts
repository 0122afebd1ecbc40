// The messenger, compiled with a thread sanitizer: no race, and no page touched that is not its landing's any more.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const sources = ['messenger', 'landing', 'kv_pool', 'shared_mapping', 'memory', 'attention_layout'];
const folder = mkdtempSync(join(tmpdir(), 'kvasir-messenger-'));
const program = join(folder, 'check');
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function compiles(): boolean {
  const names = [process.env.CXX ?? '', 'c++', 'g++', 'clang++'];
  const compiler = names.find((name) => name !== '' && spawnSync(name, ['--version']).status === 0);
  if (compiler === undefined) return false;
  const flags = ['-std=c++17', '-O1', '-g', '-fsanitize=thread', '-I', join(root, 'native'), '-pthread'];
  const files = [
    join(root, 'test/native/messenger_check.cc'),
    ...sources.map((name) => join(root, 'native', `${name}.cc`)),
  ];
  if (spawnSync(compiler, [...flags, ...files, '-o', program]).status !== 0) return false;
  // Some machines have the library and cannot run with it.
  return !spawnSync(program, ['1'], { encoding: 'utf8' }).stderr.includes('unexpected memory mapping');
}

describe.skipIf(!compiles())('the messenger (needs a C++ compiler with a thread sanitizer)', () => {
  it('has no races while landings are filled, stopped and closed', () => {
    const { stdout, stderr } = spawnSync(program, ['150'], { encoding: 'utf8' });
    expect(stderr).toBe('');
    expect(stdout).toBe('150 rounds, 0 bad pages\n');
  });
});
