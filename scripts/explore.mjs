// `npm run explore -- --minutes N`: random worlds, inputs and properties in turns, with a seed of the day.
// `--only chaos,http` chooses kinds, `--seed N` another seed. Each failure becomes a file, which `--replay FILE` runs again.
import { spawn } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';
import { fuzz } from './fuzz.mjs';
import { fuzzFrames, replayFrames } from './fuzz-frames.mjs';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';

/** Of one kind, before the next has its turn. */
const sliceSeconds = 30;
const chaosSeeds = 40;
const propertyFiles = 6;
const folder = join(root, 'build', 'explore');

/**
 * A kind of exploration. `explore` runs a slice with a seed of its own and returns the number of cases, a line about
 * them, and failures, each with what its replay needs. `replay` returns why the case fails.
 */
const kinds = {
  chaos: {
    explore: exploreChaos,
    replay: ({ seed }) => chaosFailures(seed, 1).then(({ failures }) => failures[0]?.message),
  },
  models: fuzzKind('models'),
  wire: fuzzKind('wire'),
  http: fuzzKind('http'),
  frames: {
    explore: async (seed, seconds) => {
      const { runs, summary, findings } = await fuzzFrames({ seed, seconds }, console.log);
      return { cases: runs, line: summary, failures: findings };
    },
    replay: ({ input }) => replayFrames(input, console.log),
  },
  properties: { explore: exploreProperties, replay: async ({ seed, files }) => (await runProperties(seed, files)).why },
};

function fuzzKind(target) {
  return {
    explore: async (seed, seconds) => {
      const { runs, found } = await fuzz({ target, seed, seconds }, () => {});
      return { cases: runs, line: '', failures: found.map(({ index, why }) => ({ seed, index, why })) };
    },
    replay: async ({ seed, index }) => {
      const { found } = await fuzz({ target, seed, from: index, cases: 1, seconds: 300 }, console.log);
      return found[0]?.why;
    },
  };
}

async function exploreChaos(seed) {
  const { seeds, failures } = await chaosFailures(seed, chaosSeeds);
  return {
    cases: seeds,
    line: `seeds ${seed} to ${seed + seeds - 1}`,
    failures: failures.map((failure) => ({ seed: failure.seed, why: failure.message })),
  };
}

async function chaosFailures(seed, seeds) {
  const main = join(root, 'scripts', 'kvasir.mjs');
  const args = [main, 'simulate', '--chaos', '--seed', String(seed), '--seeds', String(seeds), '--json'];
  const { output } = await run(process.execPath, args);
  const report = output.split('\n').find((line) => line.startsWith('{'));
  if (report === undefined) throw new Error(`Cannot run chaos worlds:\n${output.slice(-2000)}`);
  return JSON.parse(report);
}

/** Files with properties, outside of tests that start processes. */
function filesWithProperties() {
  const tests = join(root, 'test');
  const paths = readdirSync(tests, { recursive: true }).map(String).sort();
  const own = paths.filter((path) => path.endsWith('.test.ts') && !/^(e2e|native|scripts|tidy)/.test(path));
  return own
    .map((path) => join(tests, path))
    .filter((path) => readFileSync(path, 'utf8').includes("from 'fast-check'"))
    .map((path) => relative(root, path));
}

async function exploreProperties(seed) {
  const all = filesWithProperties();
  const files = Array.from({ length: propertyFiles }, (_, i) => all[(seed * propertyFiles + i) % all.length]);
  const { why, tests } = await runProperties(seed, files);
  return { cases: tests, line: files.join(' '), failures: why === undefined ? [] : [{ seed, files, why }] };
}

async function runProperties(seed, files) {
  const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const env = { ...process.env, KVASIR_PROPERTY_SEED: String(seed) };
  const { status, output } = await run(process.execPath, [vitest, 'run', '--maxWorkers=1', ...files], env);
  const tests = Number(/Tests .*?(\d+) passed/.exec(output)?.[1] ?? 0);
  return { tests, why: status === 0 ? undefined : output.slice(-6000) };
}

function run(command, args, env = process.env) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      cwd: root,
      env: { ...env, NO_COLOR: '1' },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => {
        output += text;
      });
    child.on('error', reject).on('close', (status) => resolve({ status, output }));
  });
}

/** All kinds in turns until the time has passed. Each slice has the next seed. Returns the number of failures. */
async function explore(names, seed, minutes) {
  const endMs = performance.now() + 60_000 * minutes;
  const totals = new Map(names.map((name) => [name, 0]));
  let failed = 0;
  for (let turn = 0; performance.now() < endMs; turn++) {
    const name = names[turn % names.length];
    const round = Math.floor(turn / names.length);
    const own = seed + round * (name === 'chaos' ? chaosSeeds : 1);
    const seconds = Math.min(sliceSeconds, Math.max(1, (endMs - performance.now()) / 1000));
    const { cases, line, failures } = await kinds[name].explore(own, seconds);
    totals.set(name, totals.get(name) + cases);
    console.log(`${name}, seed ${own}: ${cases} cases, ${failures.length} failures${line === '' ? '' : ` (${line})`}`);
    for (const failure of failures) {
      console.log(
        `${failure.why}\n  replay: npm run explore -- --replay ${store({ kind: name, ...failure }, failed++)}`,
      );
    }
  }
  console.log([...totals].map(([name, cases]) => `${name} ${cases}`).join(', '));
  return failed;
}

/** Stores a failure with what its replay needs. Returns the path of the file. */
function store(failure, number) {
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${failure.kind}-${failure.seed ?? 'input'}-${Date.now()}-${number}.json`);
  writeFileSync(path, JSON.stringify(failure, undefined, 2));
  return relative(root, path);
}

/** True if the stored case no longer fails. */
async function replay(path) {
  const failure = JSON.parse(readFileSync(path, 'utf8'));
  if (!(failure.kind in kinds)) throw new Error(`Cannot replay ${path}: it is not a failure of an exploration`);
  const why = await kinds[failure.kind].replay(failure);
  console.log(why === undefined ? 'it passes' : `it fails:\n${why}`);
  return why === undefined;
}

/** The same for all runs of a day: 20261123. */
function seedOfDay() {
  // A day apart, so that no day repeats seeds of another.
  return Math.floor(Date.now() / 86_400_000) * 100_000;
}

try {
  const text = { type: 'string' };
  const { values } = parseArgs({ options: { minutes: text, seed: text, only: text, replay: text } });
  await prepare(console.log);
  if (values.replay !== undefined) process.exitCode = (await replay(values.replay)) ? 0 : 1;
  else {
    const names = values.only?.split(',') ?? Object.keys(kinds);
    const unknown = names.find((name) => !(name in kinds));
    if (unknown !== undefined)
      throw new Error(`Cannot explore ${unknown}: the kinds are ${Object.keys(kinds).join(', ')}`);
    const seed = values.seed === undefined ? seedOfDay() : Number(values.seed);
    const failed = await explore(names, seed, Number(values.minutes ?? 10));
    process.exitCode = failed === 0 ? 0 : 1;
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
