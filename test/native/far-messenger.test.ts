// The messenger between processes, over tcp and shared memory, compiled with sanitizers: hostile frames, cut and changed connections, and no page touched that is not its landing's any more.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { findCompiler } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { availableIsas, loadNative } from '../../src/kernel/native.ts';

const sources = [
  ...['page_receiver', 'page_sender', 'page_frames', 'frame_writer', 'tcp_socket', 'line', 'listener', 'local_socket'],
  ...['shared_line', 'shared_ring', 'checksum', 'keyed_hash', 'landing', 'kv_pool'],
  ...['shared_mapping', 'memory', 'attention_layout', 'isa'],
];
const folder = mkdtempSync(join(tmpdir(), 'kvasir-far-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const native = loadNative();
const isas: readonly string[] = native === undefined ? [] : availableIsas(native);
const [avx2, avx512] = [isas.includes('avx2'), isas.includes('avx512')];
const wide = [
  ...(avx2 ? ['-DKVASIR_HAVE_AVX2=1', '-mavx2', '-mfma', '-mf16c'] : []),
  ...(avx512 ? ['-DKVASIR_HAVE_AVX512=1', '-mavx512f'] : []),
];
const wideSources = [...(avx2 ? ['checksum_avx2'] : []), ...(avx512 ? ['checksum_avx512'] : [])];
const compiler = findCompiler();
const sanitizers = ['thread', 'address,undefined'];

/** The program, once it is compiled; undefined where the compiler has no such sanitizer, or its programs do not run here. */
function compiled(sanitizer: string): Promise<string | undefined> {
  const program = join(folder, sanitizer);
  // What is quickest to compile: half the time of -O1 with checks of addresses, and it runs as fast.
  const flags = [
    '-std=c++17',
    sanitizer === 'thread' ? '-O1' : '-O0',
    '-g1',
    `-fsanitize=${sanitizer}`,
    '-I',
    join(root, 'native'),
    '-pthread',
    ...wide,
  ];
  const names = [...sources, ...wideSources].map((name) => join(root, 'native', `${name}.cc`));
  const { command = '', prefix = [] } = compiler ?? {};
  return new Promise((resolve) => {
    const files = [join(root, 'test/native/far_check.cc'), ...names];
    const child = spawn(command, [...prefix, ...flags, ...files, '-o', program], { stdio: 'ignore' });
    child.on('error', () => resolve(undefined));
    child.on('close', (code) => {
      const runs = code === 0 && !spawnSync(program, ['0'], { encoding: 'utf8' }).stderr.includes('memory mapping');
      resolve(runs ? program : undefined);
    });
  });
}

const programs = compiler === undefined ? [] : await Promise.all(sanitizers.map(compiled));

describe('the messenger between processes (needs a C++ compiler with sanitizers)', () => {
  for (const [i, sanitizer] of sanitizers.entries()) {
    const program = programs[i];
    it.skipIf(program === undefined)(`believes no lie, loses no page, touches none of others: ${sanitizer}`, () => {
      const { stdout, stderr } = spawnSync(program ?? '', ['20'], { encoding: 'utf8' });
      expect(stderr).toBe('');
      expect(stdout).toBe('20 rounds, 0 wrong\n');
    });
  }
});
