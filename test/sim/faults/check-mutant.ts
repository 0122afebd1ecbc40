// Applies a patch with a known bug to a copy of the compiled sources and runs chaos seeds on it: the checks must find the bug.
// A patch named `request-*` runs in request chaos, one named `worker-*` in that of attention workers, any other in lending chaos.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { transformSync } from 'rolldown/utils';
import { root } from '../../../scripts/root.mjs';

/** The chaos runs of a mutant. */
const lending = { entry: 'sim/faults/lending-chaos', run: 'runLendingChaos' };
const requests = { entry: 'sim/faults/request-chaos', run: 'runRequestChaos' };
const workers = { entry: 'sim/faults/worker-chaos', run: 'runWorkerChaos' };

/** Request worlds without faults and cancels. */
const calmRun = `const run = (seed) => {
  const { config, trace } = requestWorld(seed);
  const simulation = new Simulation({ ...config, faults: undefined });
  for (const request of trace) simulation.arrive(request);
  simulation.finish();
};`;

function importOf(names: string, module: string): string {
  return `import { ${names} } from ${JSON.stringify(pathToFileURL(`${module}.js`))};`;
}

/** The chaos run that a patch is for; undefined: the sources as they are. */
function kindOf(patch: string | undefined): typeof lending {
  const [name] = basename(patch ?? '').split('-');
  return name === 'request' ? requests : name === 'worker' ? workers : lending;
}

/** Runs seeds until one fails, and prints its error. */
function seedsScript(folder: string, { entry, run }: typeof lending, calm: boolean, seeds: readonly number[]): string {
  const imports = calm
    ? [
        importOf('requestWorld', join(folder, 'sim', 'faults', 'request-worlds')),
        importOf('Simulation', join(folder, 'sim', 'engine', 'simulation')),
        calmRun,
      ]
    : [importOf(`${run} as run`, join(folder, entry))];
  return `${imports.join('\n')}
for (const seed of ${JSON.stringify(seeds)}) {
  try {
    run(seed);
  } catch (error) {
    console.log(error.message);
    break;
  }
}`;
}

/** The compiled core and simulator. The files of a mutant replace theirs while its seeds run. */
export class Mutants {
  readonly #folder = mkdtempSync(join(tmpdir(), 'kvasir-mutants-'));
  readonly #compiled = join(this.#folder, 'compiled');

  constructor() {
    writeFileSync(join(this.#folder, 'package.json'), '{"type":"module"}');
    const filter = (path: string) => !/\.(d\.ts|tsbuildinfo)$/.test(path);
    cpSync(join(root, 'dist'), this.#compiled, { recursive: true, filter });
  }

  /**
   * The error of the first of the chaos runs with `seeds` that fails; undefined: all pass.
   * @param patch undefined: the sources as they are @param calm request worlds without faults
   */
  failureWith(patch: string | undefined, seeds: readonly number[], calm = false): string | undefined {
    const kind = calm ? requests : kindOf(patch);
    const paths = patch === undefined ? [] : this.#mutate(patch);
    const originals = paths.map((path) => readFileSync(join(this.#compiled, path)));
    try {
      for (const path of paths) cpSync(join(this.#folder, 'mutant', path), join(this.#compiled, path));
      const script = seedsScript(this.#compiled, kind, calm, seeds);
      writeFileSync(join(this.#compiled, 'seeds.mjs'), script);
      const error = run(process.execPath, ['seeds.mjs'], this.#compiled).trim();
      return error === '' ? undefined : error;
    } finally {
      for (const [i, path] of paths.entries()) writeFileSync(join(this.#compiled, path), originals[i]);
    }
  }

  /** The compiled file of a patch that changes one file. */
  moduleOf(patch: string): string {
    const [path] = this.#mutate(patch);
    const copy = join(this.#compiled, dirname(path), `${basename(patch)}.js`);
    cpSync(join(this.#folder, 'mutant', path), copy);
    return copy;
  }

  close(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** Compiles the files that the patch changes. Returns their paths in the compiled copy. */
  #mutate(patch: string): readonly string[] {
    const sources = join(this.#folder, 'sources');
    for (const name of ['sources', 'mutant']) rmSync(join(this.#folder, name), { recursive: true, force: true });
    const changed = [...readFileSync(patch, 'utf8').matchAll(/^\+\+\+ b\/(src\/\S+)$/gm)].map(([, path]) => path);
    for (const path of changed) {
      mkdirSync(dirname(join(sources, path)), { recursive: true });
      cpSync(join(root, path), join(sources, path));
    }
    // One line of context must match: a rename or a reflow nearby does not break the patch.
    run('git', ['apply', '--verbose', '--ignore-whitespace', '-C1', patch], sources);
    return changed.map((path) => {
      const compiled = path.replace(/^src\//, '').replace(/\.ts$/, '.js');
      const { code, errors } = transformSync(path, readFileSync(join(sources, path), 'utf8'), { target: 'es2023' });
      if (errors.length > 0) throw new Error(`Cannot compile ${path} with ${patch}: ${errors[0]?.message}`);
      mkdirSync(dirname(join(this.#folder, 'mutant', compiled)), { recursive: true });
      // Relative imports name the sources; the compiled copy has scripts.
      writeFileSync(join(this.#folder, 'mutant', compiled), code.replace(/(from "\.[^"]*)\.ts"/g, '$1.js"'));
      return compiled;
    });
  }
}

function run(command: string, args: readonly string[], cwd: string): string {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8' });
  if (status !== 0) throw new Error(`Cannot run ${command} ${args.join(' ')}: ${error?.message ?? stdout + stderr}`);
  return stdout;
}

/** The lines before the diff: the bug, the expected error, and a seed that found the bug. */
export function headOf(patch: string): { readonly title: string; readonly error: RegExp; readonly seed: number } {
  const [title, error, seed] = readFileSync(patch, 'utf8').split('\n');
  return { title, error: new RegExp(error.replace(/^Fails with: /, '')), seed: Number(seed.replace(/^Seed: /, '')) };
}

/** Seeds 1 to `count`, but `first` before all others: later changes can move a bug to another seed. */
export function seedsFrom(first: number, count: number): readonly number[] {
  const all = Array.from({ length: count }, (_, i) => i + 1);
  return [first, ...all.filter((seed) => seed !== first)];
}
