// The checkers enforce purity and the import rule: on a copy of the tree, each offence fails every checker that covers
// it.
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { root } from '../scripts/root.mjs';
import { expectedTsconfigs } from '../scripts/write-tsconfigs.mjs';
import { breachesOf } from './tidy/rules.ts';
import { readSourceTree } from './tidy/source-tree.ts';

interface Offence {
  readonly name: string;
  readonly path: string;
  /** Lines added to a correct tree. */
  readonly code: string;
  readonly breach: RegExp;
  /** Output of the compiler and the linter; undefined when that tool does not cover the offence. */
  readonly compiler: RegExp | undefined;
  readonly linter: RegExp | undefined;
}

const offences: readonly Offence[] = [
  {
    name: "import 'node:fs' in core",
    path: 'src/core/decide.ts',
    code: "import { readFileSync } from 'node:fs';\n\nexport const read = readFileSync;\n",
    breach: /core is pure and may not import node:fs/,
    compiler: /Cannot find (module|name) 'node:fs'/,
    linter: /noNodejsModules/,
  },
  {
    name: 'Date.now() in core',
    path: 'src/core/decide.ts',
    code: 'export const now = () => Date.now();\n',
    breach: /names Date/,
    compiler: undefined,
    linter: /noRestrictedGlobals/,
  },
  {
    name: 'Math.random() in core',
    path: 'src/core/decide.ts',
    code: 'export const chance = () => Math.random();\n',
    breach: /names Math\.random/,
    compiler: undefined,
    linter: /Pass randomness in/,
  },
  {
    name: 'setTimeout in core',
    path: 'src/core/decide.ts',
    code: 'export const later = (act: () => void) => setTimeout(act, 1);\n',
    breach: /names setTimeout/,
    compiler: /Cannot find name 'setTimeout'/,
    linter: /noRestrictedGlobals/,
  },
  {
    name: 'an import of runtime from graph',
    path: 'src/graph/graph.ts',
    code: "export { drive } from '../runtime/driver.ts';\n",
    breach: /graph may not import src\/runtime\/driver/,
    compiler: /TS6307|TS6059/,
    linter: undefined,
  },
];

const innocent: Readonly<Record<string, string>> = {
  'src/util/leaf.ts': '// A leaf.\nexport const leaf = 1;\n',
  'src/core/decide.ts': "// A decision.\nexport { leaf } from '../util/leaf.ts';\n",
  'src/graph/graph.ts': "// A graph.\nexport { leaf } from '../util/leaf.ts';\n",
  'src/runtime/driver.ts':
    "// A driver.\nimport { leaf } from '../util/leaf.ts';\n\nexport const drive = () => setTimeout(() => leaf, 1);\n",
};

let tree: string;

beforeEach(() => {
  tree = mkdtempSync(join(tmpdir(), 'kvasir-gate-'));
  for (const [path, text] of Object.entries(innocent)) write(path, text);
  for (const [path, text] of expectedTsconfigs(tree)) write(path, text);
  for (const path of [
    'package.json',
    'tsconfig.base.json',
    'biome.json',
    'scripts/no-math-random.grit',
    '.gitignore',
  ]) {
    mkdirSync(dirname(join(tree, path)), { recursive: true });
    copyFileSync(join(root, path), join(tree, path));
  }
  symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'));
});

afterEach(() => rmSync(tree, { recursive: true, force: true }));

describe('the gate', () => {
  it('passes an innocent tree', () => {
    expect(breachesOf(readSourceTree(tree))).toEqual([]);
    expect(compile('core', 'graph', 'runtime')).toEqual({ status: 0, output: '' });
    expect(lint()).toMatchObject({ status: 0 });
  });

  it.each(offences)('fails $name', ({ path, code, breach, compiler, linter }) => {
    write(path, `${innocent[path]}${code}`);
    expect(breachesOf(readSourceTree(tree))).toEqual([expect.stringMatching(breach)]);
    if (compiler !== undefined) {
      const { status, output } = compile(path.split('/')[1] ?? '');
      expect(output).toMatch(compiler);
      expect(status).not.toBe(0);
    }
    if (linter !== undefined) {
      const { status, output } = lint();
      expect(output).toMatch(linter);
      expect(status).not.toBe(0);
    }
  });
});

function write(path: string, text: string): void {
  mkdirSync(dirname(join(tree, path)), { recursive: true });
  writeFileSync(join(tree, path), text);
}

const compile = (...rooms: readonly string[]) =>
  runTool('typescript/bin/tsc', ['-b', ...rooms.map((room) => join('src', room))]);

const lint = () => runTool('@biomejs/biome/bin/biome', ['lint', '--error-on-warnings', 'src']);

function runTool(tool: string, args: readonly string[]): { status: number | null; output: string } {
  const script = join(root, 'node_modules', tool);
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, ...args], { cwd: tree, encoding: 'utf8' });
  return { status, output: `${stdout}${stderr}` };
}
