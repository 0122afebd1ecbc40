// The steps between a fresh clone and a running program: install, compile, build. Each returns quickly when nothing has
// changed.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { ensureBundled } from './bundle.mjs';
import { filesUnder, readRecord } from './files.mjs';
import { prepareNative } from './native-choice.mjs';
import { root } from './root.mjs';

/**
 * Brings everything up to date; `report` receives one line for each step that ran. Throws with the message of the tool
 * that failed. @param kernels false for a command that computes nothing: the native kernels stay as they are
 * @param checks false to run the command: see `ensureBuilt`
 */
export async function prepare(report, kernels = true, checks = true) {
  ensureInstalled(report);
  await ensureBuilt(report, checks);
  if (kernels) await prepareNative(report);
}

/** Runs `npm ci` unless node_modules already holds what package-lock.json requires. */
export function ensureInstalled(report) {
  const lockPath = join(root, 'package-lock.json');
  // An installed package has no lock file: npm has installed its dependencies.
  if (!existsSync(lockPath)) return;
  const wanted = JSON.parse(readFileSync(lockPath, 'utf8'));
  const present = readRecord(join(root, 'node_modules', '.package-lock.json'));
  if (present !== undefined && holds(present, wanted)) return;
  report('installing dependencies (npm ci)');
  const npm = process.env.npm_execpath;
  const args = ['ci', '--include=dev', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  if (npm !== undefined && /npm-cli\.c?js$/.test(npm)) run(process.execPath, [npm, ...args]);
  else run('npm', args);
}

function holds(present, wanted) {
  return Object.entries(wanted.packages).every(([path, entry]) => {
    if (path === '' || entry.optional === true) return true;
    return present.packages[path]?.version === entry.version;
  });
}

/**
 * Compiles TypeScript to dist/ and bundles it when a source or project file was added, changed or removed since the last
 * time. @param checks false: the first build of a clone leaves out the check of types, which takes half of its time
 */
export async function ensureBuilt(report, checks = true) {
  const sources = sourceTree();
  if (sources === undefined) return;
  const stampPath = join(root, 'dist', 'stamp.json');
  const previous = readRecord(stampPath);
  const isCurrent = JSON.stringify(previous?.sources) === JSON.stringify(sources);
  if (isCurrent && (previous.checked || !checks)) return;
  // The compiler does not delete the output of a removed source. A stamp of an earlier release has no list of them.
  if (previous !== undefined && Object.keys(previous.sources ?? { unknown: '' }).some((path) => !(path in sources))) {
    rmSync(join(root, 'dist'), { recursive: true, force: true });
  }
  const checked = checks || previous !== undefined;
  const flags = checked ? ['-b'] : ['-b', '--noCheck'];
  report(`building TypeScript (tsc ${flags.join(' ')})`);
  const projects = readdirSync(join(root, 'src')).filter((room) =>
    existsSync(join(root, 'src', room, 'tsconfig.json')),
  );
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
  run(process.execPath, [compiler, ...flags, ...projects.map((room) => join('src', room))]);
  await ensureBundled();
  mkdirSync(join(root, 'dist'), { recursive: true });
  writeFileSync(stampPath, JSON.stringify({ sources, checked }));
}

/** "size mtime" by path for every file that determines dist/; undefined in an installed package, which ships dist/. */
function sourceTree() {
  const folder = join(root, 'src');
  if (!existsSync(folder)) return undefined;
  const inSrc = filesUnder(folder).map((path) => relative(root, path));
  const paths = inSrc.filter((path) => path.endsWith('.ts') || path.endsWith('tsconfig.json'));
  const tree = {};
  for (const path of [...paths, 'tsconfig.base.json', 'package-lock.json']) {
    const { size, mtimeMs } = statSync(join(root, path));
    tree[path] = `${size} ${mtimeMs}`;
  }
  return tree;
}

function run(command, args) {
  const result = spawnSync(command, args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  if (result.error !== undefined) throw new Error(`Cannot run ${command}: ${result.error.message}`);
  if (result.status === 0) return;
  const output = `${result.stdout}${result.stderr}`.trim();
  throw new Error(
    `Cannot run ${[command, ...args].join(' ')}: exit code ${result.status ?? result.signal}:\n${output}`,
  );
}
