// Guest rooms, compiled with sanitizers: no race, no page read that was taken back, no broken frame believed, and the bits of one pool in all that is answered.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { findCompiler } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';

const sources = [
  ...['guest_room', 'guest_door', 'guest_frames', 'far_room', 'remote_attention', 'remote_plan', 'page_frames'],
  ...[
    'tcp_socket',
    'line',
    'listener',
    'local_socket',
    'shared_line',
    'shared_ring',
    'checksum',
    'keyed_hash',
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
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const compiler = findCompiler();
const sanitizers = ['thread', 'address'];

/** The program, once it is compiled; undefined where the compiler has no such sanitizer, or its programs do not run here. */
function compiled(sanitizer: string): Promise<string | undefined> {
  const program = join(folder, sanitizer);
  // What is quickest to compile and run.
  const level = sanitizer === 'thread' ? '-O1' : '-O0';
  const flags = ['-std=c++17', level, `-fsanitize=${sanitizer}`, '-I', join(root, 'native'), '-pthread'];
  const names = sources.map((name) => join(root, 'native', `${name}.cc`));
  const { command = '', prefix = [] } = compiler ?? {};
  return new Promise((resolve) => {
    const files = [join(root, 'test/native/guests_check.cc'), ...names];
    const child = spawn(command, [...prefix, ...flags, ...files, '-o', program], { stdio: 'ignore' });
    child.on('error', () => resolve(undefined));
    child.on('close', (code) => {
      const runs = code === 0 && !spawnSync(program, ['1'], { encoding: 'utf8' }).stderr.includes('memory mapping');
      resolve(runs ? program : undefined);
    });
  });
}

const programs = compiler === undefined ? [] : await Promise.all(sanitizers.map(compiled));

describe('guest rooms (need a C++ compiler with sanitizers)', () => {
  for (const [i, sanitizer] of sanitizers.entries()) {
    const program = programs[i];
    it.skipIf(program === undefined)(
      `keep their word while blocks are taken back, steps run and rooms close: ${sanitizer}`,
      () => {
        const { stdout, stderr } = spawnSync(program ?? '', ['100'], { encoding: 'utf8' });
        expect(stderr).toBe('');
        expect(stdout).toBe('100 rounds, 0 bad\n');
      },
    );
  }
});
