// Attention kernels against a double-precision reference and against themselves, by a C++ check linked with the objects
// of the addon.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { findCompiler } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { checkProgram } from './check-programs.ts';

const objectFolder = join(root, 'build', 'objects');
const built = existsSync(objectFolder) ? readdirSync(objectFolder) : [];
const objects = built
  .filter((name) => /^(attention\.[\w.]*|base\.thread_pool|simd\.isa)\.cc-\w+\.o$/.test(name))
  .map((name) => join(objectFolder, name));
const compiler = findCompiler();

describe.skipIf(compiler === undefined || objects.length === 0)(
  'attention kernels (needs a C++ compiler and the compiled addon)',
  () => {
    let program = '';

    beforeAll(async () => {
      if (compiler === undefined) return;
      const sources = [join(root, 'test', 'native', 'attention_check.cc')];
      const flags = ['-std=c++17', '-O2', '-Wall', '-Wextra'];
      program = await checkProgram({ name: 'attention', compiler, flags, sources, objects });
    });

    const check = (isa: string | undefined) => {
      const { KVASIR_ISA: _, ...inherited } = process.env;
      const env = isa === undefined ? inherited : { ...inherited, KVASIR_ISA: isa };
      return spawnSync(program, [], { encoding: 'utf8', env });
    };

    it('agree with the reference, with equal bits over chunks, batches, threads and pools', () => {
      const { stdout } = check(undefined);
      expect(stdout).toMatch(/\n\d+ passed, 0 failed\n$/);
    });

    it('agree with the reference on emulated AMX tiles', ({ skip }) => {
      const { stdout, stderr } = check('amx-emulated');
      if (stderr.includes('Cannot emulate AMX')) skip('emulation needs AVX-512');
      expect(stdout).toMatch(/^amx\n\d+ passed, 0 failed\n$/);
    });
  },
);
