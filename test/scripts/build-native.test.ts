// The native build: what it compiles again, what it says, and what it does without a compiler.
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
  withCompiler('compiles once, then has nothing to do', () => {
    const tree = treeWithTwoSources();
    expect(tree.run('build-native.mjs')).toMatchObject({ status: 0, said: expect.stringMatching(/2 of 2 files/) });
    expect(existsSync(join(tree.root, 'build/kvasir.node'))).toBe(true);
    expect(tree.run('build-native.mjs')).toEqual({ status: 0, said: '' });
  });

  withCompiler('compiles again only what includes a changed header', () => {
    const tree = treeWithTwoSources();
    tree.run('build-native.mjs');
    tree.write('native/shared.hpp', 'constexpr int kOne = 3;\n');
    expect(tree.run('build-native.mjs').said).toMatch(/1 of 2 files/);
  });

  withCompiler("fails with the compiler's own message", () => {
    const tree = treeWithTwoSources();
    tree.write('native/loner.cc', 'int loner() { return undeclared; }\n');
    const { status, said } = tree.run('build-native.mjs');
    expect(said).toMatch(/Cannot compile the native part[\s\S]*undeclared/);
    expect(status).toBe(1);
    expect(existsSync(join(tree.root, 'build/kvasir.node'))).toBe(false);
  });

  it('says in one line that the oracle is slow when there is no compiler', () => {
    const { status, said } = treeWithTwoSources().run('build-native.mjs', { env: noCompiler });
    expect(said).toMatch(/^no C\+\+ compiler found .* slow\n$/);
    expect(status).toBe(0);
  });

  withCompiler('without a compiler keeps an addon of these sources, and drops one of others', () => {
    const tree = treeWithTwoSources();
    tree.run('build-native.mjs');
    expect(tree.run('build-native.mjs', { env: noCompiler })).toEqual({ status: 0, said: '' });
    tree.write('native/loner.cc', 'int loner() { return 4; }\n');
    expect(tree.run('build-native.mjs', { env: noCompiler }).said).toMatch(/slow/);
    expect(existsSync(join(tree.root, 'build/kvasir.node'))).toBe(false);
  });
});
