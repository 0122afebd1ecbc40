// `npm run mutants [-- AREA | FILE...]`: each patch of test/mutants/{runtime,gateway,native} puts one bug into a copy of the
// sources; the test that it names must fail there. The mutants of the core and the simulator run in `npm test`.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { filesUnder } from './files.mjs';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';

const folder = join(root, 'test', 'mutants');
const areas = ['runtime', 'gateway', 'native'];
/** In the build folder, so that compiled objects can be linked instead of copied. */
const copy = join(root, 'build', 'mutants');

/** By test, the seconds that it takes without a mutant, and with what it compiles. */
const usualSeconds = new Map();

/** Tests of the copy need neither the bundle nor a second project. */
const config = `export default {
  test: { include: ['test/**/*.test.ts'], setupFiles: ['test/setup.ts'], testTimeout: 600_000, hookTimeout: 600_000, maxWorkers: 1, bail: 1 },
};
`;

/** The lines before the diff. */
function headOf(patch) {
  const [title, test] = readFileSync(patch, 'utf8').split('\n');
  return { title, test: test.replace(/^Found by: /, '') };
}

function makeCopy() {
  rmSync(copy, { recursive: true, force: true });
  const { stdout } = spawnSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], { cwd: root });
  for (const path of String(stdout)
    .split('\0')
    .filter((each) => each !== '' && existsSync(join(root, each)))) {
    mkdirSync(dirname(join(copy, path)), { recursive: true });
    cpSync(join(root, path), join(copy, path));
  }
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
  for (const name of ['dist', 'bundle']) symlinkSync(join(root, name), join(copy, name));
  mkdirSync(join(copy, 'build'), { recursive: true });
  const built = readdirSync(join(root, 'build'));
  const linked = ['objects', 'checks', 'sanitized', 'raced'].filter((name) => built.includes(name));
  for (const name of linked) spawnSync('cp', ['-al', join(root, 'build', name), join(copy, 'build', name)]);
  // Builds write these in place: a link would change those of the checkout.
  const copied = built.filter((name) => name.startsWith('kvasir.') || name.startsWith('families'));
  for (const name of copied) cpSync(join(root, 'build', name), join(copy, 'build', name));
  writeFileSync(join(copy, 'vitest.config.ts'), config);
}

function apply(patch, ...flags) {
  const { status, stderr } = spawnSync('git', ['apply', '--ignore-whitespace', '-C1', ...flags, patch], {
    cwd: copy,
    // The copy lies inside the repository, whose index must not change.
    env: { ...process.env, GIT_DIR: '/nonexistent' },
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`Cannot apply ${relative(root, patch)}:\n${stderr}`);
}

/** Runs the test in the copy. @param limitSeconds of its processes, some of which a mutant makes wait for ever */
function run(test, limitSeconds) {
  const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const args = ['-k', '5', String(limitSeconds), process.execPath, vitest, 'run', '--root', copy, test];
  const { status, stdout, stderr } = spawnSync('timeout', args, {
    cwd: copy,
    encoding: 'utf8',
    env: { ...process.env, NO_COLOR: '1' },
    maxBuffer: 2 ** 28,
  });
  const output = `${stdout}${stderr}`;
  const isOver = status !== 124 && status !== 137;
  if (isOver && status !== 0 && !/Tests .*\d+ failed|FAIL /.test(output))
    throw new Error(`Cannot run ${test}:\n${output.slice(-3000)}`);
  return { passed: status === 0, isOver, output };
}

/** Returns the time limit of a test: 120 s plus five times its usual time. The test must pass without the mutant. */
function limitOf(test) {
  if (!usualSeconds.has(test)) {
    const started = performance.now();
    const { passed, output } = run(test, 3600);
    if (!passed) throw new Error(`${test} fails without a mutant:\n${output.slice(-3000)}`);
    usualSeconds.set(test, (performance.now() - started) / 1000);
  }
  return Math.round(120 + 5 * usualSeconds.get(test));
}

/** What fails of a test's file in the copy; undefined if it passes. */
function failureOf(test, isNative, limitSeconds) {
  // Programs of checks compile what they link; other tests load the addon.
  if (isNative) {
    const build = spawnSync(process.execPath, ['scripts/build-native.mjs'], { cwd: copy, encoding: 'utf8' });
    if (build.status !== 0) throw new Error(`Cannot compile the mutant:\n${build.stderr.slice(-2000)}`);
  }
  const { passed, isOver, output } = run(test, limitSeconds);
  if (!isOver) return `${test}, which does not end in ${limitSeconds} s`;
  const [, name] = /^\s*FAIL\s+(.*)$/m.exec(output) ?? [];
  return passed ? undefined : (name ?? test);
}

function patchesOf(names) {
  const all = areas.flatMap((area) => filesUnder(join(folder, area))).filter((path) => path.endsWith('.patch'));
  return names.length === 0 ? all : all.filter((path) => names.some((name) => path.includes(name)));
}

try {
  await prepare(console.log);
  makeCopy();
  const patches = patchesOf(process.argv.slice(2));
  // Before the first mutant: nothing builds the native addon again when one is removed.
  const limits = patches.map((patch) => limitOf(headOf(patch).test));
  let missed = 0;
  for (const [i, patch] of patches.entries()) {
    const { title, test } = headOf(patch);
    const started = performance.now();
    apply(patch);
    const failure = failureOf(test, readFileSync(patch, 'utf8').includes('+++ b/native/'), limits[i]);
    apply(patch, '-R');
    const seconds = ((performance.now() - started) / 1000).toFixed(0);
    if (failure === undefined) missed++;
    console.log(
      `${relative(folder, patch)}: ${failure === undefined ? `NOT found by ${test}` : `found by ${failure}`} (${title}) ${seconds} s`,
    );
  }
  console.log(`${patches.length - missed} of ${patches.length} mutants found`);
  process.exitCode = missed === 0 ? 0 : 1;
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  rmSync(copy, { recursive: true, force: true });
}
