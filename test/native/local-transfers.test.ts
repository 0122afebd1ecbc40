// Page transfers within a process, compiled with a thread sanitizer: no races, and no write to pages of a closed receive buffer.
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { commonSources, linked } from './check-programs.ts';

const check = { check: 'local_transfers_check.cc', sources: [...commonSources, 'base/checksum', 'simd/isa'] };
const program = await linked(check, 'races', '1');

describe.skipIf(program === undefined)(
  'page transfers within a process (need a C++ compiler with a thread sanitizer)',
  () => {
    it('have no races while receive buffers are filled, stopped and closed', () => {
      const { stdout, stderr } = spawnSync(program ?? '', ['150'], { encoding: 'utf8' });
      expect(stderr).toBe('');
      expect(stdout).toBe('150 rounds, 0 bad pages\n');
    });
  },
);
