// The native build: what it recompiles, its messages, and its behaviour without a compiler.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { scriptTree } from './script-tree.ts';

const hasCompiler = ['c++', 'g++', 'clang++'].some((name) => spawnSync(name, ['--version']).status === 0);
const withCompiler = it.skipIf(!hasCompiler);
const noCompiler = { PATH: '/nonexistent', CXX: '' };

function treeWithTwoSources() {
  const tree = scriptTree();
  tree.write('native/shared.hpp', 'constexpr int kOne = 1;\n');
  tree.write('native/user.cc', '#include "shared.hpp"\nint user() { return kOne; }\n');
  tree.write('native/loner.cc', 'int loner() { return 2; }\n');
  return tree;
}

describe('build-native (all but one need a C++ compiler)', () => {
  withCompiler('compiles once, and does nothing if the addon is current', () => {
    const tree = treeWithTwoSources();
    expect(tree.run('build-native.mjs')).toMatchObject({ status: 0, output: expect.stringMatching(/2 of 2 files/) });
    expect(existsSync(join(tree.root, 'build/kvasir.node'))).toBe(true);
    expect(tree.run('build-native.mjs')).toEqual({ status: 0, output: '' });
  });

  withCompiler('recompiles only files that include a changed header', () => {
    const tree = treeWithTwoSources();
    tree.run('build-native.mjs');
    tree.write('native/shared.hpp', 'constexpr int kOne = 3;\n');
    expect(tree.run('build-native.mjs').output).toMatch(/1 of 2 files/);
  });

  withCompiler("fails with the compiler's message", () => {
    const tree = treeWithTwoSources();
    tree.write('native/loner.cc', 'int loner() { return undeclared; }\n');
    const { status, output } = tree.run('build-native.mjs');
    expect(output).toMatch(/Cannot compile the native part[\s\S]*undeclared/);
    expect(status).toBe(1);
    expect(existsSync(join(tree.root, 'build/kvasir.node'))).toBe(false);
  });

  it('reports in one line that the oracle is slow without a compiler', () => {
    const { status, output } = treeWithTwoSources().run('build-native.mjs', { env: noCompiler });
    expect(output).toMatch(/^no C\+\+ compiler found .* slow\n$/);
    expect(status).toBe(0);
  });

  withCompiler('keeps an addon of the current sources without a compiler, and removes an outdated one', () => {
    const tree = treeWithTwoSources();
    tree.run('build-native.mjs');
    expect(tree.run('build-native.mjs', { env: noCompiler })).toEqual({ status: 0, output: '' });
    tree.write('native/loner.cc', 'int loner() { return 4; }\n');
    expect(tree.run('build-native.mjs', { env: noCompiler }).output).toMatch(/slow/);
    expect(existsSync(join(tree.root, 'build/kvasir.node'))).toBe(false);
  });
});
