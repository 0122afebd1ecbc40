// Remote attention servers, compiled with sanitizers: no races, no reads of recalled pages, no malformed frame accepted, and answers with the bits of one pool.
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { commonSources, linked, type Variant } from './check-programs.ts';

const sources = [...commonSources, 'base/checksum', 'remote', 'simd/isa'];
const kinds: readonly Variant[] = ['races', 'faults'];
const check = { check: 'remote_attention_check.cc', sources };
const programs = await Promise.all(kinds.map((kind) => linked(check, kind, '1')));

describe('remote attention servers (need a C++ compiler with sanitizers)', () => {
  for (const [i, kind] of kinds.entries()) {
    const program = programs[i];
    it.skipIf(program === undefined)(
      `answer correctly or refuse while blocks are taken back, steps run and servers close: ${kind}`,
      () => {
        const { stdout, stderr } = spawnSync(program ?? '', ['100'], { encoding: 'utf8' });
        expect(stderr).toBe('');
        expect(stdout).toBe('100 rounds, 0 bad\n');
      },
    );
  }
});
