// Connections over RDMA, with an emulated libibverbs and compiled with sanitizers, and the declarations of libibverbs
// against its header.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { findCompiler } from '../../../scripts/build-native.mjs';
import { root } from '../../../scripts/root.mjs';
import { logRdmaDevice } from '../../../src/cli/serve/host/rdma-device.ts';
import { loadNative } from '../../../src/kernel/native/addon.ts';
import { commonSources, emulatedIbverbs, linked } from '../check-programs.ts';

const library = await emulatedIbverbs();
const check = {
  check: 'rdma/rdma_check.cc',
  sources: [...commonSources, 'base/checksum', 'simd/isa'],
};
const program = library && (await linked(check, 'faults', 'trial'));

describe('connections over RDMA', () => {
  it.skipIf(program === undefined)(
    'fall back to tcp, lose no byte, and end with a failed write or a killed peer (need Linux and sanitizers)',
    () => {
      const env = { ...process.env, KVASIR_IBVERBS: library };
      const { stdout, stderr } = spawnSync(program ?? '', [], { encoding: 'utf8', env });
      expect(stderr).toBe('');
      expect(stdout).toBe('0 wrong\n');
    },
  );

  it.skipIf(loadNative() === undefined)(
    'log the device, or the reason why there is none, and only if asked for',
    () => {
      const before = process.env.KVASIR_IBVERBS;
      const lines: string[] = [];
      const log = (line: string): number => lines.push(line);
      try {
        process.env.KVASIR_IBVERBS = '/nonexistent/libibverbs.so';
        logRdmaDevice('auto', log);
        expect(lines).toEqual([]);
        logRdmaDevice('rdma', log);
        expect(lines).toEqual([
          expect.stringMatching(/^Cannot use RDMA, KV pages move over tcp: .*\/nonexistent\/libibverbs\.so/),
        ]);
      } finally {
        if (before === undefined) delete process.env.KVASIR_IBVERBS;
        else process.env.KVASIR_IBVERBS = before;
      }
    },
  );
});

const compiler = findCompiler();
const includes = (header: string): boolean =>
  compiler !== undefined &&
  spawnSync(compiler.command, [...compiler.prefix, '-x', 'c++', '-fsyntax-only', '-'], {
    input: `#include <${header}>\n`,
  }).status === 0;

it.skipIf(!includes('infiniband/verbs.h'))(
  'declares libibverbs as its header does (needs infiniband/verbs.h, of libibverbs-dev)',
  () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-verbs-'));
    const source = join(root, 'test', 'native', 'rdma', 'verbs_abi_check.cc');
    const args = [
      ...(compiler?.prefix ?? []),
      '-std=c++17',
      '-I',
      join(root, 'native'),
      source,
      '-o',
      join(folder, 'check'),
    ];
    const { stderr, status } = spawnSync(compiler?.command ?? '', args, { encoding: 'utf8' });
    rmSync(folder, { recursive: true, force: true });
    expect([status, stderr]).toEqual([0, '']);
  },
);
