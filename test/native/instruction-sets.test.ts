// Objects compiled for wider instruction sets share no inline code with the baseline, which must run on any machine.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const folder = join(root, 'build', 'objects');
const addon = join(root, 'build', 'kvasir.node');
const built = existsSync(folder) ? readdirSync(folder) : [];
const objects = built.filter((name) => /[._](avx2|avx512|amx)\.cc-\w+\.o$/.test(name));
const hasNm = process.platform === 'linux' && spawnSync('nm', ['--version']).status === 0;

it.skipIf(objects.length === 0 || !hasNm)(
  'kernels keep their inline code to themselves (needs compiled x86 kernels and nm)',
  () => {
    // The linker keeps one copy of a weak symbol: if an AVX-512 copy won, portable code would run it.
    for (const object of objects) {
      const { stdout } = spawnSync('nm', ['-C', join(folder, object)], { encoding: 'utf8' });
      const weak = stdout.split('\n').filter((line) => /^[0-9a-f]+ [WVu] /.test(line));
      expect(weak, object).toEqual([]);
    }
  },
);

it.skipIf(!existsSync(addon) || !hasNm)('the addon has stack canaries (needs a compiled addon and nm)', () => {
  const { stdout } = spawnSync('nm', ['-D', '--undefined-only', addon], { encoding: 'utf8' });
  expect(stdout).toMatch(/ __stack_chk_fail\b/);
});
