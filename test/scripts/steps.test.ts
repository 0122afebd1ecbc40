// The build before a command: what it compiles, and when.
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scriptTree } from './script-tree.ts';

it('a command builds a new clone without the check of types; tests check them, and later builds do', () => {
  const tree = scriptTree();
  rmSync(join(tree.root, 'node_modules'));
  tree.write(
    'node_modules/typescript/bin/tsc',
    "require('node:fs').appendFileSync('calls', process.argv.slice(2).join(' ') + require('node:os').EOL);\n",
  );
  for (const path of ['tsconfig.base.json', 'package-lock.json', 'src/util/tsconfig.json']) tree.write(path, '{}');
  tree.write('src/util/one.ts', '');
  tree.write(
    'scripts/builds.mjs',
    `import { appendFileSync } from 'node:fs';
     import { ensureBuilt } from './steps.mjs';
     const [command, tests] = [() => ensureBuilt(() => {}, false), () => ensureBuilt(() => {})];
     for (const build of [command, command, tests, tests, command]) await build();
     appendFileSync('src/util/one.ts', '\\n');
     await command();\n`,
  );
  expect(tree.run('builds.mjs')).toEqual({ status: 0, output: '' });
  const calls = readFileSync(join(tree.root, 'calls'), 'utf8').trim().split('\n');
  expect(calls).toEqual(['-b --noCheck src/util', '-b src/util', '-b src/util']);
  // The stamp of an earlier release does not list the sources: the output of removed ones cannot be known.
  tree.write('dist/stamp.json', '{"files":{}}');
  tree.write('dist/util/removed.js', '');
  expect(tree.run('builds.mjs').status).toBe(0);
  expect(existsSync(join(tree.root, 'dist/util/removed.js'))).toBe(false);
});
