// A temporary project with the real scripts and the files of a test.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { onTestFinished } from 'vitest';
import { root } from '../../scripts/root.mjs';

export interface ScriptTree {
  readonly root: string;
  write(path: string, text: string): void;
  /** Runs a script of the tree to completion; `output` is stderr followed by stdout. */
  run(script: string, options?: RunOptions): { readonly status: number | null; readonly output: string };
}

export interface RunOptions {
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

/** Removed when the current test ends. */
export function scriptTree(): ScriptTree {
  const tree = mkdtempSync(join(tmpdir(), 'kvasir-scripts-'));
  onTestFinished(() => rmSync(tree, { recursive: true, force: true }));
  cpSync(join(root, 'scripts'), join(tree, 'scripts'), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'));
  const write = (path: string, text: string) => {
    mkdirSync(dirname(join(tree, path)), { recursive: true });
    writeFileSync(join(tree, path), text);
  };
  write('package.json', '{ "type": "module" }\n');
  return {
    root: tree,
    write,
    run(script, { args = [], env = {} } = {}) {
      const { status, stdout, stderr } = spawnSync(process.execPath, [join('scripts', script), ...args], {
        cwd: tree,
        env: { ...process.env, ...env },
        encoding: 'utf8',
      });
      return { status, output: `${stderr}${stdout}` };
    },
  };
}
