// Test programs linked under a sanitizer from a check and native sources. Programs of one variant share their objects.
import { spawn, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { findCompiler, objectsFor, raced, sanitized } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { inCi } from '../ci.ts';

/** What the sanitizer detects: data races, or memory errors and undefined behaviour. */
export const variants = { races: raced, faults: sanitized };
export type Variant = keyof typeof variants;

export interface SanitizedProgram {
  /** The check's source in test/native. */
  readonly check: string;
  /** Names of native sources without `.cc`, compiled with the flags of the variant. */
  readonly sources: readonly string[];
  /** As `sources`, compiled with `flags` too. */
  readonly own?: readonly string[];
  readonly flags?: readonly string[];
}

/**
 * Links the program to `path`, runs it with the argument `trial`, and returns `path`. Outside CI it returns undefined if the compiler lacks the
 * sanitizer or its programs do not run on this machine.
 * @throws Error with the compiler's message if it rejects the program; in CI also if the sanitizer is missing
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
  // The thread sanitizer maps fixed addresses, which strong address randomisation may occupy.
  const { stderr } = spawnSync(path, [trial], { encoding: 'utf8' });
  return stderr.includes('memory mapping') ? missing(stderr.trim()) : path;
}

/** Returns undefined; fails in CI. */
function missing(reason: string): undefined {
  if (inCi) throw new Error(`Cannot check with a sanitizer: ${reason}`);
}

function ended(command: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    let output = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
    child.on('error', reject);
    child.on('close', (code) => (code === 0 ? resolve() : reject(new Error(`${command} exited ${code}:\n${output}`))));
  });
}
