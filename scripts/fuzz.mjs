// The fuzz targets of TypeScript: builds one, runs cases for a time, starts again after a crash, and counts what was found.
// `node scripts/fuzz.mjs --target models --seconds 60 --seed 1`; a finding is replayed by the line that is printed with it.
// The target `models` runs under sanitizers.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { constants, setPriority, tmpdir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { addonOf, buildNative, findCompiler, sanitized } from './build-native.mjs';
import { root } from './root.mjs';

/** A case takes a few hundredths of a second; a case that takes this long hangs. */
const hangMs = 60_000;
const findingsMax = 20;
const program = join(root, 'build', 'sanitized', 'test', 'fuzz', 'main.js');
/** What the cases of each target are. */
const targets = {
  models: 'mutated models',
  wire: 'mutated messages between processes',
  http: 'mutated HTTP requests',
};

/**
 * @param {{ target?: string, seconds?: number, cases?: number, from?: number, seed?: number }} options
 * @returns {Promise<{ passed: number, failed: number, skipped: number, runs: number, found: { index: number, why: string }[] }>}
 * one test, or as many failures as findings
 */
export async function fuzz(options, report) {
  const { target = 'models', seconds = 60, cases = 100_000_000, from = 0, seed = 1 } = options;
  if (!(target in targets))
    throw new Error(`Cannot fuzz ${target}: the targets are ${Object.keys(targets).join(', ')}`);
  const libraries = target === 'models' ? sanitizerLibraries() : '';
  if (libraries === undefined) {
    report('fuzzing skipped: the compiler has no runtime of the address and undefined-behaviour sanitizers');
    return { passed: 0, failed: process.env.CI ? 1 : 0, skipped: 1, runs: 0, found: [] };
  }
  if (target === 'models') await buildNative(report, () => {}, sanitized);
  compileTarget();
  const endMs = performance.now() + 1000 * seconds;
  const last = from + cases;
  let next = from;
  const found = [];
  while (next < last && found.length < findingsMax) {
    const leftSeconds = (endMs - performance.now()) / 1000;
    if (leftSeconds <= 0) break;
    const run = await runCases({ target, from: next, cases: last - next, seconds: leftSeconds, seed }, libraries);
    for (const finding of run.findings) {
      found.push(finding);
      report(`found in case ${finding.index} (${finding.seedName}): ${finding.why}`);
      report(`  replay: node scripts/fuzz.mjs --target ${target} --seed ${seed} --from ${finding.index} --cases 1`);
    }
    if (run.done !== undefined) {
      const { cases: count, ...outcomes } = run.done;
      const figures = Object.entries(outcomes).map(([stage, times]) => `${stage} ${times}`);
      next += count;
      report(`fuzzed ${next - from} ${targets[target]} with seed ${seed}: ${figures.join(', ')}`);
      break;
    }
    next = run.at + 1;
  }
  return { passed: found.length === 0 ? 1 : 0, failed: found.length, skipped: 0, runs: next - from, found };
}

/**
 * Compiles what `fuzz` needs in a process of low priority, so that other work keeps the cores. Resolves when the process
 * has ended. What it could not compile, `fuzz` compiles later or reports as missing.
 */
export function compileFuzzTarget() {
  return new Promise((resolve) => {
    const builder = join(root, 'scripts', 'build-native.mjs');
    const child = spawn(process.execPath, [builder, '--sanitize'], { stdio: 'ignore' });
    child.on('error', resolve).on('close', resolve);
    if (child.pid !== undefined) setPriority(child.pid, constants.priority.PRIORITY_LOW);
  });
}

/** Paths of the sanitizer runtimes to preload, or undefined when the compiler has none that work. */
function sanitizerLibraries() {
  const compiler = process.platform === 'linux' ? findCompiler() : undefined;
  if (compiler === undefined) return undefined;
  const paths = ['libasan.so', 'libstdc++.so'].map((name) => {
    const args = [...compiler.prefix, `-print-file-name=${name}`];
    return spawnSync(compiler.command, args, { encoding: 'utf8' }).stdout.trim();
  });
  if (!paths.every((path) => isAbsolute(path) && existsSync(path))) return undefined;
  const preload = paths.join(' ');
  const { status } = spawnSync(process.execPath, ['-e', ''], { env: environment(preload) });
  return status === 0 ? preload : undefined;
}

/** The environment of a node whose addon at `addon` is under sanitizers; undefined when the compiler has none that work. */
export function sanitizerEnvironment(addon) {
  const preload = sanitizerLibraries();
  return preload === undefined ? undefined : { ...environment(preload), KVASIR_NATIVE: addon };
}

function environment(preload) {
  if (preload === '') return process.env;
  // Node frees nothing at exit. The quarantine of freed memory is small, so that the memory of a case can be measured.
  const address = 'detect_leaks=0:quarantine_size_mb=8:allocator_may_return_null=1';
  const sanitizers = { LD_PRELOAD: preload, ASAN_OPTIONS: address, UBSAN_OPTIONS: 'print_stacktrace=1' };
  // The compiled target lies beside no package.json, from which the path would follow.
  return { ...process.env, ...sanitizers, KVASIR_NATIVE: addonOf(sanitized) };
}

function compileTarget() {
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
  const { status, stdout } = spawnSync(process.execPath, [compiler, '-p', join(root, 'test', 'fuzz')], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`Cannot compile the fuzz target:\n${stdout}`);
}

/** Runs one process of cases until all are done or one case ends it. */
async function runCases({ target, ...limits }, preload) {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-fuzz-progress-'));
  const progress = join(folder, 'case');
  writeFileSync(progress, '');
  const flags = Object.entries({ target, ...limits }).flatMap(([name, value]) => [`--${name}`, String(value)]);
  const child = spawn(process.execPath, ['--expose-gc', program, '--progress', progress, ...flags], {
    env: environment(preload),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'])
    child[name].setEncoding('utf8').on('data', (text) => {
      output[name] += text;
    });
  const hung = watchForHang(child, progress);
  const code = await new Promise((resolve) => child.on('close', (status, signal) => resolve(status ?? signal)));
  const at = Number(readFileSync(progress, 'utf8')) || limits.from;
  rmSync(folder, { recursive: true, force: true });
  const lines = output.stdout.split('\n');
  const findings = lines.filter((line) => line.startsWith('FAULT ')).map((line) => JSON.parse(line.slice(6)));
  const done = lines.find((line) => line.startsWith('DONE '));
  if (done !== undefined) return { at, findings, done: JSON.parse(done.slice(5)) };
  const why = hung() ? `it hung for ${hangMs / 1000} s` : `the process ended with ${code}:\n${excerpt(output.stderr)}`;
  return { at, findings: [...findings, { index: at, seedName: 'crash or hang', why }], done: undefined };
}

/** Kills the child when it stays on one case; the returned function reports whether that happened. */
function watchForHang(child, progress) {
  let last = { text: '', sinceMs: performance.now() };
  let killed = false;
  const timer = setInterval(() => {
    const text = readFileSync(progress, 'utf8');
    if (text !== last.text) last = { text, sinceMs: performance.now() };
    else if (performance.now() - last.sinceMs > hangMs) {
      killed = true;
      child.kill('SIGKILL');
    }
  }, 1000);
  child.on('close', () => clearInterval(timer));
  return () => killed;
}

/** The first lines of a sanitizer's report: the fault and its stack. */
function excerpt(text) {
  const start = Math.max(0, text.search(/ERROR: AddressSanitizer|runtime error|FATAL ERROR/));
  return text.slice(start).split('\n').slice(0, 25).join('\n');
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const text = { type: 'string' };
  const options = { target: text, seconds: text, cases: text, from: text, seed: text };
  const { target, ...limits } = parseArgs({ options }).values;
  const numbers = Object.fromEntries(Object.entries(limits).map(([name, value]) => [name, Number(value)]));
  try {
    const { passed, failed } = await fuzz({ target, ...numbers }, console.log);
    console.log(`${passed} passed, ${failed} failed`);
    process.exitCode = failed === 0 ? 0 : 1;
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
