// Page transfers between processes, over TCP, shared memory and emulated RDMA, compiled with sanitizers: malformed frames, cut and corrupted connections, and no write to pages of a closed receive buffer.
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { availableIsas, loadNative } from '../../src/kernel/native/native.ts';
import { commonSources, emulatedIbverbs, linked, type Variant } from './check-programs.ts';

const native = loadNative();
const isas: readonly string[] = native === undefined ? [] : availableIsas(native);
const [avx2, avx512] = [isas.includes('avx2'), isas.includes('avx512')];
const wide = [
  ...(avx2 ? ['-DKVASIR_HAVE_AVX2=1', '-mavx2', '-mfma', '-mf16c'] : []),
  ...(avx512 ? ['-DKVASIR_HAVE_AVX512=1', '-mavx512f'] : []),
];
const wideSources = [...(avx2 ? ['base/checksum_avx2'] : []), ...(avx512 ? ['base/checksum_avx512'] : [])];
const kinds: readonly Variant[] = ['races', 'faults'];
const check = {
  check: 'remote_transfers_check.cc',
  sources: commonSources,
  own: ['base/checksum', 'simd/isa', ...wideSources],
  flags: wide,
};
const programs = await Promise.all(kinds.map((kind) => linked(check, kind, '0')));
const env = { ...process.env, KVASIR_IBVERBS: await emulatedIbverbs() };

describe('page transfers between processes (need a C++ compiler with sanitizers)', () => {
  for (const [i, kind] of kinds.entries()) {
    const program = programs[i];
    it.skipIf(program === undefined)(`accept no malformed frame, lose no page, write to no other page: ${kind}`, () => {
      const { stdout, stderr } = spawnSync(program ?? '', ['20'], { encoding: 'utf8', env });
      expect(stderr).toBe('');
      expect(stdout).toBe('20 rounds, 0 wrong\n');
    });
  }
});
