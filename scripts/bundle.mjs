// Bundles the compiled command and its threads into bundle/: a process loads a few files instead of hundreds.
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { basename, join, relative } from 'node:path';
import { filesUnder, isRunning, readRecord } from './files.mjs';
import { root } from './root.mjs';

const compiled = join(root, 'dist');
const folder = join(root, 'bundle');

/** The main module of each process and thread, relative to dist/; the bundle has them under the same paths. */
const entries = [
  ...['cli/main', 'cli/serve/instance-worker', 'cli/serve/model/tokenizer-worker'],
  ...['cli/serve/model/grammar-worker', 'cli/serve/host/heartbeat-worker', 'cli/simulate/sweep/simulation-worker'],
  'cli/bench/fleet/peer',
  ...['library/index', 'library/ai-sdk'],
];

/** Brings bundle/ up to date with dist/; nothing if no source is compiled, since most tests need neither. */
export async function ensureBundled() {
  const stampPath = join(folder, 'stamp.json');
  const scripts = filesUnder(compiled).filter((path) => path.endsWith('.js'));
  if (scripts.length === 0) return;
  const stamp = Object.fromEntries(scripts.map((path) => [relative(root, path), statSync(path).mtimeMs]));
  if (JSON.stringify(readRecord(stampPath)) === JSON.stringify(stamp)) return;
  removeAbandoned();
  const partial = temporaryFolder();
  try {
    const modules = await bundle(partial);
    writeFileSync(join(partial, 'LICENSES.txt'), licensesOf(modules));
    writeFileSync(join(partial, 'stamp.json'), JSON.stringify(stamp));
    putInPlace(partial);
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
}

let temporaryFolders = 0;

/** A path beside bundle/ that names this process. */
function temporaryFolder() {
  return `${folder}.${process.pid}-${++temporaryFolders}.tmp`;
}

/** Removes what processes left that ended while they bundled. */
function removeAbandoned() {
  const pattern = new RegExp(`^${basename(folder)}\\.(\\d+)(-\\d+)?\\.tmp$`);
  for (const name of readdirSync(root)) {
    const pid = pattern.exec(name)?.[1];
    if (pid !== undefined && !isRunning(Number(pid))) rmSync(join(root, name), { recursive: true, force: true });
  }
}

/** Makes `partial` the bundle. Other processes may do the same at the same moment: the last bundle stays. */
function putInPlace(partial) {
  for (;;) {
    const earlier = temporaryFolder();
    rename(folder, earlier, 'ENOENT');
    const isInPlace = rename(partial, folder, 'ENOTEMPTY', 'EEXIST');
    rmSync(earlier, { recursive: true, force: true });
    if (isInPlace) return;
  }
}

/** False if it fails with one of these codes. */
function rename(from, to, ...codes) {
  try {
    renameSync(from, to);
    return true;
  } catch (error) {
    if (codes.includes(error.code)) return false;
    throw error;
  }
}

/** Writes the bundle to `target`. @returns the paths of its modules */
async function bundle(target) {
  const { rolldown } = await import('rolldown');
  const input = Object.fromEntries(entries.map((entry) => [entry, join(compiled, `${entry}.js`)]));
  const build = await rolldown({ input, platform: 'node', plugins: [ownUrls], logLevel: 'warn' });
  mkdirSync(target, { recursive: true });
  const { output } = await build.write({
    dir: target,
    format: 'esm',
    entryFileNames: '[name].js',
    chunkFileNames: 'chunks/[name]-[hash].js',
  });
  await build.close();
  return output.flatMap((chunk) => chunk.moduleIds ?? []);
}

/** Code finds other files relative to its module: a module in a chunk keeps the URL that it has in dist/, as main modules do anyway. */
const ownUrls = {
  name: 'own-urls',
  transform(code, id) {
    const path = relative(compiled, id);
    const isMain = entries.includes(path.replace(/\.js$/, ''));
    if (isMain || !id.startsWith(compiled) || !code.includes('import.meta.url')) return undefined;
    return code.replaceAll('import.meta.url', `new URL(${JSON.stringify(`../${path}`)}, import.meta.url).href`);
  },
};

/** The licence of each package with modules in the bundle. */
function licensesOf(modules) {
  const marker = /^.*node_modules\/(?:@[^/]+\/)?[^/]+/;
  const packages = [...new Set(modules.map((path) => marker.exec(path)?.[0]))].filter((path) => path !== undefined);
  return packages.sort().map(licenseOf).join('\n\n');
}

function licenseOf(path) {
  const { name, version, license } = JSON.parse(readFileSync(join(path, 'package.json'), 'utf8'));
  const file = readdirSync(path).find((each) => /^licen[cs]e/i.test(each));
  const text = file === undefined ? '' : `\n\n${readFileSync(join(path, file), 'utf8').trim()}`;
  return `${name} ${version} (${license})${text}`;
}
