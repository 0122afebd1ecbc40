// Check programs in C++: compiled once for each state of their sources, flags and compiler, then kept in the build folder.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { hash, textsOf } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';

const folder = join(root, 'build', 'checks');

interface CheckProgram {
  readonly name: string;
  readonly compiler: { readonly command: string; readonly prefix: readonly string[]; readonly name: string };
  readonly flags: readonly string[];
  readonly sources: readonly string[];
  /** Paths of objects; a key of their content ends each name. */
  readonly objects: readonly string[];
}

/**
 * The path of the program, compiled and linked if no run before has done so.
 * @throws Error with the output of the compiler if it rejects the program or has warnings
 */
export async function checkProgram({ name, compiler, flags, sources, objects }: CheckProgram): Promise<string> {
  const texts = sources.flatMap((source) => textsOf(source));
  const path = join(folder, `${name}-${hash([compiler.name, ...flags, ...texts, ...objects])}`);
  if (existsSync(path)) return path;
  mkdirSync(folder, { recursive: true });
  // Written under another name and renamed, so that an interrupted compiler leaves no incomplete program.
  const partial = `${path}.${process.pid}.tmp`;
  const args = [...compiler.prefix, ...flags, '-I', join(root, 'native'), '-pthread', ...sources, ...objects];
  await run(compiler.command, [...args, '-o', partial]);
  renameSync(partial, path);
  for (const other of readdirSync(folder)) {
    const isOlder = other.slice(0, other.lastIndexOf('-')) === name && join(folder, other) !== path;
    if (isOlder && !other.endsWith('.tmp')) rmSync(join(folder, other), { force: true });
  }
  return path;
}

function run(command: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    let output = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
    child.on('error', reject);
    child.on('close', (code) => {
      if (code === 0 && output === '') resolve();
      else reject(new Error(`${command} exited ${code}:\n${output}`));
    });
  });
}
