// Check programs in C++, also linked under a sanitizer: compiled once for each state of their sources, flags and compiler, then kept in the build folder.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { findCompiler, hash, objectsFor, raced, sanitized, textsOf } from '../../scripts/build-native.mjs';
import { root } from '../../scripts/root.mjs';
import { inCi } from '../ci.ts';

/** What the sanitizer detects: data races, or memory errors and undefined behaviour. */
export const variants = { races: raced, faults: sanitized };
export type Variant = keyof typeof variants;

/** Folders and files of native/ that every program needs: pools, connections and page transfers. */
export const commonSources = [
  ...['attention', 'attention/kernels/portable', 'base/memory', 'base/shared_mapping', 'base/thread_pool'],
  ...['kv/kv_pool', 'kv/receive_buffer', 'net', 'rdma', 'transfer'],
];

export interface SanitizedProgram {
  /** The check's source in test/native. */
  readonly check: string;
  /** Folders of native sources, and names of others without `.cc`, compiled with the flags of the variant. */
  readonly sources: readonly string[];
  /** Names of sources without `.cc`, compiled with `flags` too. */
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

/**
 * The path of a libibverbs for `KVASIR_IBVERBS` that emulates adapters between processes of this host; undefined
 * without a compiler, and on systems other than Linux.
 */
export async function emulatedIbverbs(): Promise<string | undefined> {
  const compiler = findCompiler();
  if (process.platform !== 'linux') return undefined;
  if (compiler === undefined) return missing('no C++ compiler found');
  const [source, versions] = ['cc', 'map'].map((kind) =>
    join(root, 'test', 'native', 'rdma', `emulated_ibverbs.${kind}`),
  );
  return checkProgram({
    name: 'emulated_ibverbs',
    compiler,
    flags: ['-std=c++17', '-O2', '-Wall', '-Wextra', '-fPIC', '-shared', `-Wl,--version-script=${versions}`],
    sources: [source ?? ''],
    objects: [],
  });
}

const buildFolder = join(root, 'build', 'checks');

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
  const path = join(buildFolder, `${name}-${hash([compiler.name, ...flags, ...texts, ...objects])}`);
  if (existsSync(path)) return path;
  mkdirSync(buildFolder, { recursive: true });
  // Written under another name and renamed, so that an interrupted compiler leaves no incomplete program.
  const partial = `${path}.${process.pid}.tmp`;
  const args = [...compiler.prefix, ...flags, '-I', join(root, 'native'), '-pthread', ...sources, ...objects];
  await run(compiler.command, [...args, '-o', partial]);
  renameSync(partial, path);
  for (const other of readdirSync(buildFolder)) {
    const isOlder = other.slice(0, other.lastIndexOf('-')) === name && join(buildFolder, other) !== path;
    if (isOlder && !other.endsWith('.tmp')) rmSync(join(buildFolder, other), { force: true });
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
