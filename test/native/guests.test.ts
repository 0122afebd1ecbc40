// Guest rooms, compiled with a thread sanitizer: no race, no page read that was taken back, and the bits of one pool in all that is answered.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const sources = [
  ...[
    'guest_room',
    'guest_door',
    'guest_frames',
    'far_room',
    'tcp_frames',
    'tcp_socket',
    'checksum',
    'keyed_hash',
    'remote_attention',
    'remote_plan',
    'kv_pool',
    'shared_mapping',
    'memory',
    'threads',
    'isa',
    'attention',
  ],
  ...['stream', 'plan', 'pieces', 'merge', 'portable', 'layout'].map((name) => `attention_${name}`),
];
const folder = mkdtempSync(join(tmpdir(), 'kvasir-guests-'));
const program = join(folder, 'check');
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function compiles(): boolean {
  const names = [process.env.CXX ?? '', 'c++', 'g++', 'clang++'];
  const compiler = names.find((name) => name !== '' && spawnSync(name, ['--version']).status === 0);
  if (compiler === undefined) return false;
  const flags = ['-std=c++17', '-O1', '-g', '-fsanitize=thread', '-I', join(root, 'native'), '-pthread'];
  const files = [
    join(root, 'test/native/guests_check.cc'),
    ...sources.map((name) => join(root, 'native', `${name}.cc`)),
  ];
  if (spawnSync(compiler, [...flags, ...files, '-o', program]).status !== 0) return false;
  // Some machines have the library and cannot run with it.
  return !spawnSync(program, ['1'], { encoding: 'utf8' }).stderr.includes('unexpected memory mapping');
}

describe.skipIf(!compiles())('guest rooms (need a C++ compiler with a thread sanitizer)', () => {
  it('have no races while blocks are taken back, steps run and rooms close', () => {
    const { stdout, stderr } = spawnSync(program, ['100'], { encoding: 'utf8' });
    expect(stderr).toBe('');
    expect(stdout).toBe('100 rounds, 0 bad\n');
  });
});
