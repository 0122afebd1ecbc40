// Applies a patch to a copy of the pure rooms and runs chaos seeds on it: what a checker is worth shows in the fault that it finds.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { root } from '../../scripts/root.mjs';

const rooms = ['util', 'policy', 'cluster', 'trace', 'sim'];
/** What a mutant is looked for with: those of requests have names that say so. */
const lending = { entry: 'sim/lending/chaos', run: 'runLendingChaos' };
const requests = { entry: 'sim/faults/chaos', run: 'runRequestChaos' };

const compilerOptions = {
  target: 'ES2023',
  lib: ['ES2023'],
  types: [],
  module: 'NodeNext',
  moduleResolution: 'NodeNext',
  noCheck: true,
  isolatedModules: true,
  rewriteRelativeImportExtensions: true,
  rootDir: 'src',
  outDir: 'out',
};

/** Worlds of requests as traces are replayed over them: nothing goes wrong, and nobody cancels. */
const calmly = `const run = (seed) => {
  const { config, trace } = requestWorld(seed);
  const simulation = new Simulation({ ...config, faults: undefined });
  for (const request of trace) simulation.arrive(request);
  simulation.finish();
};`;

function importOf(names: string, module: string): string {
  return `import { ${names} } from ${JSON.stringify(pathToFileURL(`${module}.js`))};`;
}

/** Runs seeds until one fails, and prints what it said. */
function seedsScript(folder: string, { entry, run }: typeof lending, calm: boolean, seeds: number): string {
  const chaos = importOf(calm ? 'requestWorld' : `${run} as run`, join(folder, entry));
  const simulation = importOf('Simulation', join(folder, 'sim', 'simulation'));
  return `${chaos}
${calm ? `${simulation}\n${calmly}` : ''}
for (let seed = 1; seed <= ${seeds}; seed++) {
  try {
    run(seed);
  } catch (error) {
    console.log(error.message);
    break;
  }
}`;
}

/** What the first of `seeds` chaos runs that fails says; undefined when none does. Without a patch, of the sources as they are. @param calm nothing goes wrong with requests */
export function failureWith(patch: string | undefined, seeds: number, calm = false): string | undefined {
  const ofRequests = calm || (patch !== undefined && basename(patch).startsWith('request-'));
  const world = ofRequests ? requests : lending;
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-mutant-'));
  try {
    for (const room of rooms) cpSync(join(root, 'src', room), join(folder, 'src', room), { recursive: true });
    if (patch !== undefined) run('git', ['apply', '--verbose', patch], folder);
    writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: [`src/${world.entry}.ts`] }));
    run(process.execPath, [join(root, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', '.'], folder);
    writeFileSync(join(folder, 'seeds.mjs'), seedsScript(join(folder, 'out'), world, calm, seeds));
    const said = run(process.execPath, ['seeds.mjs'], folder).trim();
    return said === '' ? undefined : said;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function run(command: string, args: readonly string[], cwd: string): string {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8' });
  if (status !== 0) throw new Error(`Cannot run ${command} ${args.join(' ')}: ${error?.message ?? stdout + stderr}`);
  return stdout;
}

/** The lines that a patch begins with: what it brings back, and what the failure is to say. */
export function headOf(patch: string): { readonly title: string; readonly says: RegExp } {
  const [title, says] = readFileSync(patch, 'utf8').split('\n');
  return { title, says: new RegExp(says.replace(/^Fails with: /, '')) };
}
