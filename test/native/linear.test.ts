// The linear kernels on every instruction set, by a C++ check linked with the objects of the last native build.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { findCompiler } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { checkProgram } from './check-programs.ts';

const objects = join(root, 'build', 'objects');
const needed = /^(linear\.[\w.]*|base\.thread_pool|simd\.isa)\.cc-\w+\.o$/;
const built = existsSync(objects) ? readdirSync(objects).filter((name) => needed.test(name)) : [];
const compiler = findCompiler();
const canRun = built.length > 0 && compiler !== undefined;
const cpuFlags = existsSync('/proc/cpuinfo') ? readFileSync('/proc/cpuinfo', 'utf8') : '';
const hasAvx512 = ['avx512_vnni', 'avx512_bf16'].every((flag) => cpuFlags.includes(flag));

let program = '';

function check(isa: string | undefined) {
  const env: NodeJS.ProcessEnv = { ...process.env };
  delete env.KVASIR_ISA;
  if (isa !== undefined) env.KVASIR_ISA = isa;
  const { stdout, status } = spawnSync(program, { env, encoding: 'utf8' });
  const lines = stdout.trim().split('\n');
  return {
    failed: lines.filter((line) => line.startsWith('FAILED')),
    passed: lines.filter((line) => line.startsWith('ok ')),
    status,
  };
}

describe.skipIf(!canRun)('linear kernels (needs compiled kernels and a C++ compiler)', () => {
  beforeAll(async () => {
    if (compiler === undefined) return;
    const sources = [join(root, 'test', 'native', 'linear_check.cc')];
    const flags = ['-std=c++17', '-O1', '-ffp-contract=off'];
    const paths = built.map((name) => join(objects, name));
    program = await checkProgram({ name: 'linear', compiler, flags, sources, objects: paths });
  });

  it('agree with a scalar reference and give the same bits for any batch and thread count', () => {
    const result = check(undefined);
    expect(result.failed).toEqual([]);
    expect(result.passed.length).toBeGreaterThan(60);
    expect(result.status).toBe(0);
  });

  it.skipIf(!hasAvx512)('agree with the reference on emulated AMX tiles (needs AVX-512)', () => {
    const result = check('amx-emulated');
    expect(result.failed).toEqual([]);
    expect(result.passed.length).toBeGreaterThan(60);
    expect(result.status).toBe(0);
  });
});
