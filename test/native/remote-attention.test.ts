// Remote attention servers, compiled with sanitizers: no races, no reads of recalled pages, no malformed frame accepted, and answers with the bits of one pool.
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { connectionSources, linked, type Variant } from './check-programs.ts';

const sources = [
  'remote/server',
  'remote/listener',
  'remote/query_frames',
  'remote/client',
  'remote/remote_attention',
  'remote/plan',
  ...connectionSources,
  'base/checksum',
  'kv/kv_pool',
  'base/shared_mapping',
  'base/memory',
  'base/thread_pool',
  'simd/isa',
  'attention/attention',
  'attention/stream',
  'attention/plan',
  'attention/pieces',
  'attention/merge',
  'attention/kernels/portable',
  'attention/layout',
];
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
