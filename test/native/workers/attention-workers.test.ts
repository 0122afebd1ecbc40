// Attention workers, compiled with sanitizers: no races, no wrong reads of frames that lie, and the bits of one pool.
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { commonSources, emulatedIbverbs, linked, type Variant } from '../check-programs.ts';

// `linear/input` has the size of a row, which calls of the workers contain.
const sources = [
  ...commonSources,
  ...['base/checksum', 'linear/input', 'ops/sparse_check', 'simd/isa', 'sparse', 'workers'],
];
const kinds: readonly Variant[] = ['races', 'faults'];
const check = { check: 'workers/attention_workers_check.cc', sources };
const programs = await Promise.all(kinds.map((kind) => linked(check, kind, '1')));
const env = { ...process.env, KVASIR_IBVERBS: await emulatedIbverbs() };

describe('attention workers (need a C++ compiler with sanitizers)', () => {
  for (const [i, kind] of kinds.entries()) {
    const program = programs[i];
    it.skipIf(program === undefined)(
      `have the bits of one pool while steps leave results unread, workers end and frames lie: ${kind}`,
      () => {
        const { stdout, stderr } = spawnSync(program ?? '', ['3'], { encoding: 'utf8', env });
        expect(stderr).toBe('');
        expect(stdout).toBe('3 rounds, 0 bad\n');
      },
    );
  }
});
