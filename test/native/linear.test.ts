// The linear kernels on every instruction set, by a C++ check linked with the objects of the last native build.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const objects = join(root, 'build', 'objects');
const needed = /^(linear\.[\w.]*|base\.thread_pool|simd\.isa)\.cc-\w+\.o$/;
const built = existsSync(objects) ? readdirSync(objects).filter((name) => needed.test(name)) : [];
const compiler = process.env.CXX ?? 'c++';
const canRun = built.length > 0 && spawnSync(compiler, ['--version']).status === 0;
const cpuFlags = existsSync('/proc/cpuinfo') ? readFileSync('/proc/cpuinfo', 'utf8') : '';
const hasAvx512 = ['avx512_vnni', 'avx512_bf16'].every((flag) => cpuFlags.includes(flag));

const folder = mkdtempSync(join(tmpdir(), 'kvasir-linear-'));
const program = join(folder, 'linear_check');
afterAll(() => rmSync(folder, { recursive: true, force: true }));

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
  beforeAll(() => {
    const source = join(root, 'test', 'native', 'linear_check.cc');
    const inputs = [source, ...built.map((name) => join(objects, name))];
    const flags = ['-std=c++17', '-O1', '-ffp-contract=off', '-I', join(root, 'native'), '-pthread'];
    const { status, stderr } = spawnSync(compiler, [...flags, ...inputs, '-o', program], { encoding: 'utf8' });
    expect(stderr).toBe('');
    expect(status).toBe(0);
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
