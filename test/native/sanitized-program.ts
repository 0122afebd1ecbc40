// Programs that tests link from a check of their own and the library's sources under a sanitizer; objects are shared by all that are compiled alike.
import { spawn, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { findCompiler, objectsFor, raced, sanitized } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { inCi } from '../ci.ts';

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

/**
 * The program at `path`, once it is linked and has run with `trial`. Undefined, outside CI only, where the compiler has no such sanitizer or its
 * programs do not run here.
 * @throws Error with the compiler's words where it refuses the program, and in CI where nothing could be checked
 */
export async function linked(
  { check, sources, own = [], flags = [] }: SanitizedProgram,
  variant: Variant,
  path: string,
  trial: string,
): Promise<string | undefined> {
  const { command, prefix } = findCompiler() ?? { command: undefined, prefix: [] };
  if (command === undefined) return missing('no C++ compiler found');
  try {
    const objects = await objectsFor([...sources], variants[variant]);
    const files = [join(root, 'test', 'native', check), ...own.map((name) => join(root, 'native', `${name}.cc`))];
    const common = ['-std=c++17', ...variants[variant].flags, '-I', join(root, 'native'), '-pthread', ...flags];
    await ended(command, [...prefix, ...common, ...files, ...objects, '-o', path]);
  } catch (error) {
    const [sanitizes] = variants[variant].linkFlags;
    const links = spawnSync(command, [...prefix, sanitizes, '-x', 'c++', '-', '-o', path], {
      input: 'int main() {}\n',
    });
    if (links.status === 0) throw error;
    return missing(`${command} has no ${sanitizes}`);
  }
  // A sanitizer of threads wants its own places in memory, which very random addresses do not leave it.
  const { stderr } = spawnSync(path, [trial], { encoding: 'utf8' });
  return stderr.includes('memory mapping') ? missing(stderr.trim()) : path;
}

/** Nothing, or in CI a failure. */
function missing(why: string): undefined {
  if (inCi) throw new Error(`Cannot check with a sanitizer: ${why}`);
}

function ended(command: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    let said = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
    child.on('error', reject);
    child.on('close', (code) => (code === 0 ? resolve() : reject(new Error(`${command} exited ${code}:\n${said}`))));
  });
}
