// Programs that tests link from a check of their own and the library's sources under a sanitizer; objects are shared by all that are compiled alike.
import { spawn, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { findCompiler, objectsFor, raced, sanitized } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';

/** What is looked for: races, or faults of memory and undefined behaviour. */
export const variants = { races: raced, faults: sanitized };
export type Variant = keyof typeof variants;

export interface SanitizedProgram {
  /** The check's own source, in test/native. */
  readonly check: string;
  /** Of native/, without `.cc`: as the variant compiles them, and those that are compiled with `flags`. */
  readonly sources: readonly string[];
  readonly own?: readonly string[];
  readonly flags?: readonly string[];
}

/** The program at `path`, once it is linked and has run with `trial`; undefined where the compiler has no such sanitizer, or its programs do not run here. */
export async function linked(
  { check, sources, own = [], flags = [] }: SanitizedProgram,
  variant: Variant,
  path: string,
  trial: string,
): Promise<string | undefined> {
  const { command, prefix } = findCompiler() ?? { command: undefined, prefix: [] };
  if (command === undefined) return undefined;
  try {
    const objects = await objectsFor([...sources], variants[variant]);
    const files = [join(root, 'test', 'native', check), ...own.map((name) => join(root, 'native', `${name}.cc`))];
    const common = ['-std=c++17', ...variants[variant].flags, '-I', join(root, 'native'), '-pthread', ...flags];
    await ended(command, [...prefix, ...common, ...files, ...objects, '-o', path]);
  } catch {
    return undefined;
  }
  return spawnSync(path, [trial], { encoding: 'utf8' }).stderr.includes('memory mapping') ? undefined : path;
}

function ended(command: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: 'ignore' });
    child.on('error', reject);
    child.on('close', (code) => (code === 0 ? resolve() : reject(new Error(`${command} exited ${code}`))));
  });
}
