// Compiles native/**/*.cc to build/kvasir.node with the available C++ compiler: no Python, no node-gyp, only changed files.
// `--sanitize` builds build/sanitized/build/kvasir.node, which aborts the process at its first memory error.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism, getPriority } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { filesUnder, isRunning, readRecord } from './files.mjs';
import { root } from './root.mjs';

const sourceFolder = join(root, 'native');
const buildFolder = join(root, 'build');

// GCC's AVX-512 headers start from undefined vectors on purpose, and GCC warns about each.
const warnings = ['-Wall', '-Wextra', '-Wno-uninitialized', '-Wno-maybe-uninitialized'];
const baseFlags = ['-O3', '-std=c++17', '-fPIC', '-fvisibility=hidden', ...warnings];
// Only explicit fused multiply-adds, so that all translation units of a form round alike.
const floatFlags = ['-ffp-contract=off', '-fno-math-errno', '-fno-trapping-math'];

const avx2 = ['-mavx2', '-mfma', '-mf16c'];
const avx512Names = ['f', 'bw', 'vl', 'dq', 'vnni', 'bf16'];
const avx512 = [...avx512Names.map((name) => `-mavx512${name}`), ...avx2];

/** Instruction-set families by file-name suffix: `linear_avx2.cc` is compiled with the flags of `avx2`. */
const families = {
  avx2,
  avx512,
  amx: ['-mamx-tile', '-mamx-int8', '-mamx-bf16', ...avx512],
};

/** Overflows of buffers on the stack, and of buffers with a known size in calls of libc, end the process. */
const hardening = ['-fstack-protector-strong', '-U_FORTIFY_SOURCE', '-D_FORTIFY_SOURCE=3'];

/** Folders that compute on operands that their callers have checked, in loops that canaries would slow down. */
const checkedFolders = ['attention', 'bench', 'linear', 'ops', 'simd', 'sparse'];

/** The addon of the server. */
export const optimised = {
  folder: buildFolder,
  what: 'the native kernels',
  families: Object.keys(families),
  flags: [],
  /** Of sources that read models, messages, pages and the disk. */
  hostFlags: hardening,
  linkFlags: [],
};

/**
 * Folders that variants for tests compile as one unit each: most of the text of a source is headers of the library, and
 * with joined folders these compile in half of the time.
 */
const hostFolders = [
  ...['attention', 'kv', 'linear', 'net', 'ops', 'program'],
  ...['rdma', 'remote', 'sparse', 'store', 'transfer', 'workers'],
];

const unoptimised = ['-O0', '-g1', '-DKVASIR_INLINE=inline'];
const sanitizers = '-fsanitize=address,undefined';

/**
 * The addon for tests with hostile input. Instrumented code compiles slowly, so it has no optimisations and no
 * instruction-set families: the code that parses files is the same for all.
 */
export const sanitized = {
  folder: join(buildFolder, 'sanitized', 'build'),
  what: 'the native kernels under sanitizers',
  families: [],
  flags: [unoptimised, sanitizers, '-fno-sanitize-recover=all'].flat(),
  // Kernels see only checked shapes; checks of undefined behaviour triple the time to compile them.
  kernelFlags: ['-fno-sanitize=undefined'],
  joinedFolders: ['addon', ...hostFolders],
  linkFlags: [sanitizers],
};

/** The same with all kernels, for the suites of `npm run sanitize`. */
export const sanitizedWhole = {
  ...sanitized,
  folder: join(buildFolder, 'sanitized', 'whole'),
  what: 'the native part with all kernels under sanitizers',
  families: Object.keys(families),
  flags: ['-O1', '-g1', sanitizers, '-fno-sanitize-recover=all'],
  kernelFlags: [],
  joinedFolders: [],
};

/** For test programs that detect races between threads. */
export const raced = {
  folder: join(buildFolder, 'raced', 'build'),
  what: 'the native kernels under the thread sanitizer',
  families: [],
  flags: ['-O1', '-g1', '-fsanitize=thread'],
  joinedFolders: hostFolders,
  linkFlags: ['-fsanitize=thread'],
};

/** For fuzz targets: the blocks of code that an input reaches are reported to the driver of the target. */
export const explored = {
  folder: join(buildFolder, 'explored', 'build'),
  what: 'the native kernels for fuzzing',
  families: [],
  flags: ['-O1', '-g1', sanitizers, '-fno-sanitize-recover=all', '-fsanitize-coverage=trace-pc'],
  linkFlags: [sanitizers],
};

/** The same with libFuzzer, which clang has. */
export const exploredByLibFuzzer = {
  ...explored,
  folder: join(buildFolder, 'explored', 'libfuzzer'),
  flags: ['-O1', '-g1', `${sanitizers},fuzzer-no-link`, '-fno-sanitize-recover=all'],
  linkFlags: [`${sanitizers},fuzzer`],
};

/**
 * Brings the addon up to date; reports one line per action, and nothing if it is current.
 * Compiler warnings go to `warn`: they concern developers of the kernels, not users who start a server.
 */
export async function buildNative(report, warn = () => {}, variant = optimised) {
  if (!hasNativeSources()) return;
  const text = nativeBuildId();
  const compiler = findCompiler();
  if (compiler === undefined) {
    // An addon compiled elsewhere from these sources is still usable, for example in a container without a compiler.
    if (builtStamp(variant).text === text) return;
    rmSync(addonOf(variant), { force: true });
    report(
      'no C++ compiler found (tried $CXX, c++, g++, clang++): the TypeScript oracle computes instead, which is slow',
    );
    return;
  }
  await compileAddon({ ...compiler, warn }, variant, report);
}

/** Identifies the native sources: an addon with this id was compiled from the same text. */
export function nativeBuildId() {
  return hash(nativeSources().flatMap((source) => textsOf(source)));
}

/** True while native/ has sources: not in the temporary projects of some tests. */
export function hasNativeSources() {
  return nativeSources().length > 0;
}

function nativeSources() {
  return filesUnder(sourceFolder).filter((path) => path.endsWith('.cc'));
}

/** Brings the addon of a variant up to date with a compiler, which may compile for another platform. */
export async function compileAddon(compiler, variant, report) {
  const units = planUnits(compiler, joined(nativeSources(), variant.joinedFolders ?? [], variant), variant);
  // Symbols are bound at load: a missing kernel fails the load, which is reported, instead of a call during a step. Their
  // table is read-only afterwards.
  const elfFlags = ['-pthread', '-Wl,-z,now', '-Wl,-z,relro'];
  const platformFlags = compiler.platform === 'darwin' ? ['-undefined', 'dynamic_lookup'] : elfFlags;
  const linkFlags = [...platformFlags, ...variant.linkFlags];
  const stamp = { text: nativeBuildId(), units: hash([...units.map((unit) => unit.key), ...linkFlags]) };
  const built = builtStamp(variant);
  if (built.text === stamp.text && built.units === stamp.units) return;
  await makeAddon(compiler, units, linkFlags, variant, report);
  writeFileSync(stampOf(variant), JSON.stringify(stamp));
}

const stampOf = (variant) => join(variant.folder, 'kvasir.stamp');

/** What the present addon of a variant was made from; empty without one. */
function builtStamp(variant) {
  return (existsSync(addonOf(variant)) ? readRecord(stampOf(variant)) : undefined) ?? {};
}

/** Path of a variant's addon. */
export function addonOf(variant) {
  return join(variant.folder, 'kvasir.node');
}

/** Folder of a variant's object files. */
export function objectsOf(variant) {
  return join(variant.folder, 'objects');
}

/** Compiles the units without an object, links all, and replaces the addon atomically. */
async function makeAddon(compiler, units, linkFlags, variant, report) {
  const started = performance.now();
  const objectFolder = objectsOf(variant);
  mkdirSync(objectFolder, { recursive: true });
  const stale = units.filter((unit) => !existsSync(unit.object));
  report(`compiling ${variant.what}: ${stale.length} of ${units.length} files with ${compiler.name}`);
  await inParallel(stale, availableParallelism(), (unit) => compileMissing(compiler, unit));
  const linking = `${addonOf(variant)}.${process.pid}.tmp`;
  await execute(compiler, ['-shared', '-o', linking, ...units.map((unit) => unit.object), ...linkFlags]);
  renameSync(linking, addonOf(variant));
  removeStaleObjects(objectFolder, new Set(units.map((unit) => basename(unit.object))));
  report(`compiled ${variant.what} in ${((performance.now() - started) / 1000).toFixed(1)} s`);
}

/**
 * The objects of some sources, for programs that tests link. Objects that a variant's addon or another test has compiled are reused.
 * @param {string[]} names of folders in native/, for their sources but those of instruction sets, and of files without
 * extension: `linear/kernels/portable`
 * @throws Error if there is no compiler, or it fails
 */
export async function objectsFor(names, variant, { compiler = findCompiler(), width = 1 } = {}) {
  if (compiler === undefined) throw new Error('Cannot compile the native part: no C++ compiler found');
  const all = nativeSources();
  const sources = names.flatMap((name) => {
    const inFolder = all.filter((source) => isDirectlyIn(name, source));
    return inFolder.length > 0 ? inFolder : [join(sourceFolder, `${name}.cc`)];
  });
  const folders = (variant.joinedFolders ?? []).filter((name) => names.includes(name));
  const units = planUnits(compiler, joined(sources, folders, variant), variant);
  mkdirSync(objectsOf(variant), { recursive: true });
  await inParallel(units, width, (unit) => compileMissing({ ...compiler, warn: () => {} }, unit));
  for (const { object } of units) removeOlder(object);
  return units.map((unit) => unit.object);
}

/**
 * @typedef {{ command: string, prefix: string[], name: string, arch: string, platform: string, families?: string[] }} Compiler
 * `families`: the instruction-set families that it is known to support; undefined: each is tried.
 * @returns {Compiler | undefined} the first compiler that runs, for this machine
 */
export function findCompiler() {
  const candidates = [process.env.CXX, 'c++', 'g++', 'clang++'].filter((name) => name !== undefined && name !== '');
  for (const candidate of candidates) {
    const compiler = compilerOf(candidate);
    if (compiler !== undefined) return compiler;
  }
  return undefined;
}

/** @returns {Compiler | undefined} undefined if it does not run */
export function compilerOf(candidate) {
  const [command, ...prefix] = candidate.split(' ').filter((part) => part !== '');
  const answer = spawnSync(command, [...prefix, '--version'], { encoding: 'utf8' });
  if (answer.status !== 0) return undefined;
  const name = answer.stdout.split('\n')[0].trim();
  return { command, prefix, name, arch: process.arch, platform: process.platform };
}

/** One unit per source: its flags, and a key that depends on the source, its headers, the flags and the compiler. */
function planUnits(compiler, sources, variant) {
  const known = compiler.arch === 'x64' ? (compiler.families ?? usableFamilies(compiler)) : [];
  const usable = known.filter((family) => variant.families.includes(family));
  // These macros state to code outside a family's files that the family is compiled.
  const defines = usable.map((family) => `-DKVASIR_HAVE_${family.toUpperCase()}=1`);
  const units = [];
  for (const source of sources) {
    const family = familyOf(source);
    if (family !== undefined && !usable.includes(family)) continue;
    const kernelFlags = isKernel(source) ? (variant.kernelFlags ?? []) : [];
    const isHost = family === undefined && !checkedFolders.includes(relative(sourceFolder, source).split(/[/\\]/)[0]);
    const hostFlags = isHost ? (variant.hostFlags ?? []) : [];
    const familyFlags = family === undefined ? [] : families[family];
    const own = [...variant.flags, ...hostFlags, ...kernelFlags, ...defines, ...familyFlags];
    const flags = [...baseFlags, ...floatFlags, ...own];
    const texts = textsOf(source);
    const usesHeaders = texts.some(includesNodeApi);
    const includes = usesHeaders ? nodeApiIncludes() : [];
    // The versions of the header packages, not their paths: a moved checkout keeps its objects.
    const headers = usesHeaders ? nodeApiVersions() : [];
    const key = hash([compiler.name, compiler.arch, compiler.platform, ...texts, ...flags, ...headers]);
    const object = join(objectsOf(variant), `${nameOf(source)}-${key}.o`);
    units.push({ source, flags: [...flags, ...includes], key, object });
  }
  // Files of the wide families take longest to compile, so they start first.
  return units.sort((a, b) => b.flags.length - a.flags.length || a.object.localeCompare(b.object));
}

/** The sources of each folder but those of instruction sets, which have flags of their own, are replaced by one that includes them. */
function joined(sources, folders, { folder }) {
  mkdirSync(folder, { recursive: true });
  return folders.reduce((left, name) => {
    const parts = left.filter((source) => isDirectlyIn(name, source));
    if (parts.length === 0) return left;
    const all = join(folder, `${name}.cc`);
    replaceText(all, parts.map((source) => `#include "${relative(sourceFolder, source)}"\n`).join(''));
    return [...left.filter((source) => !parts.includes(source)), all];
  }, sources);
}

/** True for a source of the baseline in a folder of native/, not for those in folders inside. */
function isDirectlyIn(name, source) {
  return dirname(source) === join(sourceFolder, name) && familyOf(source) === undefined;
}

/** Writes a file that other processes may be reading with the same text. */
function replaceText(path, text) {
  if (existsSync(path) && readFileSync(path, 'utf8') === text) return;
  const partial = `${path}.${process.pid}.tmp`;
  writeFileSync(partial, text);
  renameSync(partial, path);
}

/** Name of a source's objects, before their key. */
const nameOf = (source) => relative(sourceFolder, source).replaceAll(/[/\\]/g, '.').replace(/^\.+/, '');

/** The instruction-set family of a source; undefined for the baseline. */
function familyOf(source) {
  const suffix = basename(source, '.cc').split('_').at(-1);
  return suffix in families ? suffix : undefined;
}

/** True for arithmetic, compiled once for each instruction set: `linear/kernels/portable.cc`. */
const isKernel = (source) => /[/\\](kernels|integer)[/\\]/.test(source);

/** The instruction-set families that the compiler supports; cached, since the check costs three compiler starts. */
function usableFamilies(compiler) {
  const recordPath = join(buildFolder, `families-${hash([compiler.name, JSON.stringify(families)])}.json`);
  const known = readRecord(recordPath);
  if (known !== undefined) return known.usable;
  const usable = Object.keys(families).filter((family) => {
    const args = [...compiler.prefix, ...families[family], '-x', 'c++', '-fsyntax-only', '-'];
    return spawnSync(compiler.command, args, { input: '#include <immintrin.h>\nint one;\n' }).status === 0;
  });
  mkdirSync(buildFolder, { recursive: true });
  writeFileSync(recordPath, JSON.stringify({ compiler: compiler.name, usable }));
  return usable;
}

const includesNodeApi = (text) => /#include\s*<(napi|node_api|js_native_api)\.h>/.test(text);

const nodeApiDefines = ['-DNAPI_VERSION=8', '-DNAPI_CPP_EXCEPTIONS'];

export function nodeApiIncludes() {
  const require = createRequire(import.meta.url);
  const headers = join(dirname(require.resolve('node-api-headers')), 'include');
  const wrapper = dirname(require.resolve('node-addon-api'));
  return ['-isystem', headers, '-isystem', wrapper, ...nodeApiDefines];
}

function nodeApiVersions() {
  const require = createRequire(import.meta.url);
  const packages = ['node-api-headers', 'node-addon-api'];
  return [...packages.map((name) => require(`${name}/package.json`).version), ...nodeApiDefines];
}

/** Compiles the object unless another process has done so, or is doing so: then it waits. */
async function compileMissing(compiler, unit) {
  // A process of low priority compiles for long on a busy machine: nothing waits for it.
  const claim = getPriority() > 0 ? undefined : `${unit.object}.claim`;
  while (claim !== undefined && !claimed(claim)) await new Promise((resolve) => setTimeout(resolve, 100));
  try {
    if (existsSync(unit.object)) return;
    // Written under another name and renamed, so that an interrupted compiler leaves no incomplete object.
    const partial = `${unit.object}.${process.pid}.tmp`;
    await execute(compiler, [...unit.flags, '-I', sourceFolder, '-c', unit.source, '-o', partial]);
    renameSync(partial, unit.object);
  } finally {
    if (claim !== undefined) rmSync(claim, { force: true });
  }
}

/** True if the link names this process now; false while it names another. */
function claimed(path) {
  try {
    symlinkSync(String(process.pid), path);
    return true;
  } catch (error) {
    if (error.code !== 'EEXIST') throw error;
  }
  try {
    // Its process may have ended without removing it.
    if (!isRunning(Number(readlinkSync(path)))) rmSync(path, { force: true });
  } catch (error) {
    if (error.code !== 'ENOENT') throw error;
  }
  return false;
}

/** Runs the compiler; its output is the error message if it fails. */
function execute(compiler, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(compiler.command, [...compiler.prefix, ...args], { stdio: ['ignore', 'inherit', 'pipe'] });
    let output = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      output += text;
    });
    child.on('error', reject);
    child.on('close', (code) => {
      if (code !== 0)
        return reject(new Error(`Cannot compile the native part: ${compiler.command} exited ${code}:\n${output}`));
      if (output !== '') compiler.warn(output);
      resolve();
    });
  });
}

/** Runs `work` for each item, at most `width` at a time. After a failure no further item starts, and the failure is thrown. */
async function inParallel(items, width, work) {
  const queue = [...items];
  const worker = async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) {
      await work(item).catch((error) => {
        queue.length = 0;
        throw error;
      });
    }
  };
  await Promise.all(Array.from({ length: Math.min(width, items.length) }, worker));
}

/** Removes objects of earlier versions of the source. */
function removeOlder(object) {
  const [folder, own] = [dirname(object), basename(object)];
  const source = own.slice(0, own.lastIndexOf('-') + 1);
  for (const name of readdirSync(folder))
    if (name.startsWith(source) && name.endsWith('.o') && name !== own) rmSync(join(folder, name), { force: true });
}

/** Removes objects of earlier versions and of sources that are gone, not those that tests compile of joined sources. */
function removeStaleObjects(objectFolder, current) {
  const sourceOf = (name) => name.slice(0, name.lastIndexOf('-'));
  const units = new Set([...current].map(sourceOf));
  const apart = new Set(
    nativeSources()
      .map(nameOf)
      .filter((name) => !units.has(name)),
  );
  for (const name of readdirSync(objectFolder)) {
    const isStale = name.endsWith('.o') && !current.has(name) && !apart.has(sourceOf(name));
    if (isStale) rmSync(join(objectFolder, name), { force: true });
  }
}

/** The text of a source and of every project header that it includes, directly or indirectly. */
export function textsOf(source, seen = new Map()) {
  if (seen.has(source) || !existsSync(source)) return [...seen.values()];
  const text = readFileSync(source, 'utf8');
  seen.set(source, `${relative(root, source)}\n${text}`);
  for (const [, name] of text.matchAll(/^\s*#\s*include\s*"([^"]+)"/gm)) {
    textsOf(join(dirname(source), name), seen);
    textsOf(join(sourceFolder, name), seen);
  }
  return [...seen.values()];
}

export function hash(parts) {
  const digest = createHash('sha256');
  for (const part of parts) digest.update(part).update('\0');
  return digest.digest('hex').slice(0, 16);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  try {
    const variant = process.argv.includes('--sanitize') ? sanitized : optimised;
    await buildNative(console.log, (text) => process.stderr.write(text), variant);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
