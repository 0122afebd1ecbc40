// The built addon has the measures of the linker and the compiler against overflows (docs/guide/security.md).
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const addon = join(root, 'build', 'kvasir.node');
const isReadable = existsSync(addon) && spawnSync('readelf', ['--version']).status === 0;

it.skipIf(!isReadable)('relocations are read-only, and stacks and calls of libc are checked (needs readelf)', () => {
  const show = (...flags: string[]): string => spawnSync('readelf', [...flags, addon], { encoding: 'utf8' }).stdout;
  expect(show('-lW')).toContain('GNU_RELRO');
  expect(show('-dW')).toContain('BIND_NOW');
  const symbols = show('--dyn-syms', '-W');
  expect(symbols).toContain('__stack_chk_fail');
  expect(symbols).toMatch(/__\w+printf_chk|__mem\w+_chk/);
});
