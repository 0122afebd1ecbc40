// Attention workers, compiled with sanitizers: no races, no wrong reads of frames that lie, and the bits of one pool.
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { connectionSources, emulatedIbverbs, linked, type Variant } from '../check-programs.ts';

const sources = [
  'workers/attention_worker',
  'workers/page_puller',
  'workers/pull_queue',
  'workers/shard_attention',
  'workers/shard_sender',
  'workers/worker_frames',
  'workers/worker_link',
  ...connectionSources,
  'ops/sparse_check',
  'sparse/sparse_attention',
  'sparse/scoring',
  'sparse/slots',
  'sparse/page_bounds',
  'base/checksum',
  'kv/kv_pool',
  'kv/receive_buffer',
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
