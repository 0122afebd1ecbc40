// Test programs linked under a sanitizer from a check and native sources. Programs of one variant share their objects.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { findCompiler, objectsFor, raced, sanitized } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { inCi } from '../ci.ts';
import { checkProgram } from './check-program.ts';

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
 * Links the program, runs it with the argument `trial`, and returns its path. Outside CI it returns undefined if the compiler lacks the
 * sanitizer or its programs do not run on this machine.
 * @throws Error with the compiler's message if it rejects the program; in CI also if the sanitizer is missing
 */
export async function linked(
  { check, sources, own = [], flags = [] }: SanitizedProgram,
  variant: Variant,
  trial: string,
): Promise<string | undefined> {
  const compiler = findCompiler();
  if (compiler === undefined) return missing('no C++ compiler found');
  let path: string;
  try {
    path = await checkProgram({
      name: `${basename(check, '.cc')}-${variant}`,
      compiler,
      flags: ['-std=c++17', ...variants[variant].flags, ...flags],
      sources: [join(root, 'test', 'native', check), ...own.map((name) => join(root, 'native', `${name}.cc`))],
      objects: await objectsFor([...sources], variants[variant]),
    });
  } catch (error) {
    const [sanitizes] = variants[variant].linkFlags;
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-sanitizer-'));
    const args = [...compiler.prefix, sanitizes, '-x', 'c++', '-', '-o', join(folder, 'empty')];
    const links = spawnSync(compiler.command, args, { input: 'int main() {}\n' });
    rmSync(folder, { recursive: true, force: true });
    if (links.status === 0) throw error;
    return missing(`${compiler.name} has no ${sanitizes}`);
  }
  // The thread sanitizer maps fixed addresses, which strong address randomisation may occupy.
  const { stderr } = spawnSync(path, [trial], { encoding: 'utf8' });
  return stderr.includes('memory mapping') ? missing(stderr.trim()) : path;
}

/** Returns undefined; fails in CI. */
function missing(reason: string): undefined {
  if (inCi) throw new Error(`Cannot check with a sanitizer: ${reason}`);
}
