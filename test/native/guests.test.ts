// Guest rooms, compiled with sanitizers: no race, no page read that was taken back, no broken frame believed, and the bits of one pool in all that is answered.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { linked, type Variant } from './sanitized-program.ts';

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
const kinds: readonly Variant[] = ['races', 'faults'];
const check = { check: 'guests_check.cc', sources };
const programs = await Promise.all(kinds.map((kind) => linked(check, kind, join(folder, kind), '1')));

describe('guest rooms (need a C++ compiler with sanitizers)', () => {
  for (const [i, kind] of kinds.entries()) {
    const program = programs[i];
    it.skipIf(program === undefined)(
      `keep their word while blocks are taken back, steps run and rooms close: ${kind}`,
      () => {
        const { stdout, stderr } = spawnSync(program ?? '', ['100'], { encoding: 'utf8' });
        expect(stderr).toBe('');
        expect(stdout).toBe('100 rounds, 0 bad\n');
      },
    );
  }
});
