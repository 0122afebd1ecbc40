// The fuzz target of frames between processes, guided by coverage: by libFuzzer where clang has it, else by a driver of
// this repository over the instrumentation of GCC.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { compilerOf, explored, exploredByLibFuzzer, findCompiler, hash, objectsFor, textsOf } from './build-native.mjs';
import { root } from './root.mjs';

const folder = join(root, 'test', 'fuzz', 'frames');
const target = join(folder, 'frames_fuzz.cc');
const driver = join(folder, 'coverage_main.cc');

const sources = [
  ...['attention', 'attention/kernels/portable', 'base/checksum', 'base/memory', 'base/shared_mapping'],
  ...[
    'base/thread_pool',
    'kv/kv_pool',
    'kv/receive_buffer',
    'linear/input',
    'net',
    'ops/sparse_check',
    'rdma',
    'remote',
    'simd/isa',
    'sparse',
  ],
  ...['transfer', 'workers'],
];

/**
 * Runs the target for a time. A finding has the input, in base64.
 * @returns {Promise<{ runs: number, summary: string, findings: { input: string, why: string }[] }>}
 */
export async function fuzzFrames({ seconds, seed }, report) {
  const program = await frameProgram(report);
  if (program === undefined) return { runs: 0, summary: 'skipped: no C++ compiler with sanitizers', findings: [] };
  const into = mkdtempSync(join(tmpdir(), 'kvasir-frames-'));
  try {
    const flags = [
      `-seed=${seed}`,
      `-max_total_time=${Math.ceil(seconds)}`,
      `-artifact_prefix=${into}/`,
      '-timeout=60',
    ];
    const { status, stderr } = await run(program, [...flags, '-print_final_stats=1'], (seconds + 180) * 1000);
    const runs = Number(/Done (\d+) runs/.exec(stderr)?.[1] ?? 0);
    const summary = /Done \d+ runs.*/.exec(stderr)?.[0] ?? '';
    if (status === 0) return { runs, summary, findings: [] };
    const [artifact] = spawnSync('ls', [into], { encoding: 'utf8' }).stdout.split('\n');
    const input = artifact === '' ? '' : readFileSync(join(into, artifact)).toString('base64');
    return { runs, summary, findings: [{ input, why: excerpt(stderr) }] };
  } finally {
    rmSync(into, { recursive: true, force: true });
  }
}

/** Runs one input. @returns {Promise<string | undefined>} why it fails */
export async function replayFrames(input, report) {
  const program = await frameProgram(report);
  if (program === undefined) throw new Error('Cannot replay frames: no C++ compiler with sanitizers');
  const into = mkdtempSync(join(tmpdir(), 'kvasir-frames-'));
  try {
    writeFileSync(join(into, 'input'), Buffer.from(input, 'base64'));
    const { status, stderr } = await run(program, [join(into, 'input')], 180_000);
    return status === 0 ? undefined : excerpt(stderr);
  } finally {
    rmSync(into, { recursive: true, force: true });
  }
}

/** The path of the compiled target; undefined if no compiler has the sanitizers. */
async function frameProgram(report) {
  const clang = compilerOf('clang++');
  const byLibFuzzer = clang !== undefined && compiles(clang, ['-fsanitize=fuzzer,address,undefined'], stubText);
  const compiler = byLibFuzzer ? clang : findCompiler();
  const variant = byLibFuzzer ? exploredByLibFuzzer : explored;
  if (compiler === undefined || (!byLibFuzzer && !compiles(compiler, variant.flags, 'int main() {}\n')))
    return undefined;
  const own = byLibFuzzer ? [target] : [target, driver];
  const objects = await objectsFor(sources, variant, { compiler, width: availableParallelism() });
  const key = hash([compiler.name, ...variant.flags, ...own.flatMap((source) => textsOf(source)), ...objects]);
  const program = join(variant.folder, `frames-${key}`);
  if (existsSync(program)) return program;
  report('compiling the fuzz target of frames');
  mkdirSync(variant.folder, { recursive: true });
  const include = ['-std=c++17', '-pthread', '-I', join(root, 'native')];
  const parts = own.map((source, i) => ({ source, object: `${program}.${i}.o` }));
  for (const { source, object } of parts) {
    // The driver is not instrumented: it would report its own blocks.
    const flags = source === driver ? ['-O2', '-g1'] : variant.flags;
    compile(compiler, [...include, ...flags, '-c', source, '-o', object]);
  }
  compile(compiler, [
    ...parts.map(({ object }) => object),
    ...objects,
    '-pthread',
    ...variant.linkFlags,
    '-o',
    `${program}.tmp`,
  ]);
  for (const { object } of parts) rmSync(object);
  renameSync(`${program}.tmp`, program);
  return program;
}

const stubText =
  '#include <cstddef>\nextern "C" int LLVMFuzzerTestOneInput(const unsigned char*, size_t) { return 0; }\n';

function compiles({ command, prefix }, flags, text) {
  const into = mkdtempSync(join(tmpdir(), 'kvasir-probe-'));
  const args = [
    ...prefix,
    ...flags.filter((flag) => flag !== '-fsanitize-coverage=trace-pc'),
    '-x',
    'c++',
    '-',
    '-o',
    join(into, 'program'),
  ];
  const { status } = spawnSync(command, args, { input: text });
  rmSync(into, { recursive: true, force: true });
  return status === 0;
}

function compile({ command, prefix }, args) {
  const { status, stderr } = spawnSync(command, [...prefix, ...args], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`Cannot compile the fuzz target of frames:\n${stderr}`);
}

function run(program, args, limitMs) {
  return new Promise((resolve, reject) => {
    const sanitizers = {
      ASAN_OPTIONS: 'handle_abort=1:detect_leaks=0:max_allocation_size_mb=2048',
      UBSAN_OPTIONS: 'print_stacktrace=1:abort_on_error=1',
    };
    const child = spawn(program, args, { env: { ...process.env, ...sanitizers }, stdio: ['ignore', 'ignore', 'pipe'] });
    const timer = setTimeout(() => child.kill('SIGKILL'), limitMs);
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      stderr = `${stderr}${text}`.slice(-60_000);
    });
    child.on('error', reject).on('close', (status) => {
      clearTimeout(timer);
      resolve({ status, stderr });
    });
  });
}

/** The first lines of a report of a sanitizer. */
function excerpt(text) {
  const start = Math.max(0, text.search(/ERROR: AddressSanitizer|runtime error|terminate called|hangs/));
  return text.slice(start).split('\n').slice(0, 25).join('\n');
}
