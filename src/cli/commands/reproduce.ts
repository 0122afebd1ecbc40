// `kvasir reproduce`: runs the sweeps behind the tables of published pages, and prints the tables or writes them into the pages.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, isAbsolute, join } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { packageFile, packageVersion } from '../package-root.ts';
import { checkOutputs, writeOutput } from '../simulate/outputs/output-file.ts';
import { type FigureTable, figureTableOf, markdownTable, withTable } from '../simulate/sweep/figure-table.ts';
import { runSweep, SweepJournal, SweepProgress } from '../simulate/sweep/run-sweep.ts';
import { type Sweep, sweepOf } from '../simulate/sweep/sweep-file.ts';
import { counted } from '../terminal/fields.ts';
import { groups } from '../terminal/help.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { readYaml } from '../yaml-file.ts';

const schema = z.object({
  list: z.boolean().default(false),
  write: z.boolean().default(false),
  traces: z.string().optional(),
  jobs: numeric(z.number().int().min(1).max(1024)).optional(),
});

interface PublishedFigure {
  readonly name: string;
  readonly table: FigureTable;
  /** Trace files that its runs read. */
  readonly traces: readonly string[];
  readonly path: string;
  readonly content: Readonly<Record<string, unknown>>;
}

export function reproduceCommand(): Command {
  return new Command('reproduce')
    .argument('[figures...]', 'Names of tables (default: all whose traces are there)')
    .optionsGroup(groups.output)
    .option('--list', 'List the tables with their pages, runs and traces')
    .option('--write', 'Write the tables into their pages')
    .option('--traces <folder>', 'Read the traces of the tables from this folder')
    .option('--jobs <n>', 'Run at most this number of simulations at once (default: all cores)')
    .action(async (names: readonly string[], flags: Record<string, unknown>) => {
      const { list, write, traces, jobs } = readOptions(schema, flags);
      const all = publishedFigures();
      if (list) {
        printTable(all.map(rowOf), counted(all.length, 'table'));
        return;
      }
      const chosen = chosenFrom(all, names, traces);
      if (write)
        for (const page of new Set(chosen.map(({ table }) => table.page))) checkOutputs({ write: packageFile(page) });
      for (const [i, figure] of chosen.entries()) {
        console.error(`${figure.name} (${i + 1} of ${chosen.length}): ${figure.table.title}`);
        const lines = await reproduce(figure, traces, jobs);
        console.log(`\n## ${figure.table.title}\n\n${lines.join('\n')}`);
        const page = packageFile(figure.table.page);
        if (write)
          writeOutput(page, withTable(readFileSync(page, 'utf8'), figure.name, [commandOf(figure), '', ...lines]));
      }
    });
}

/** The line above a table that states its command. */
function commandOf({ name, traces }: PublishedFigure): string {
  return `\`kvasir reproduce ${name}${traces.length === 0 ? '' : ' --traces FOLDER'}\`:`;
}

function rowOf({ name, table, traces, path, content }: PublishedFigure) {
  const { points } = sweepOf(content, path);
  return { name, title: table.title, runs: points.length, page: table.page, traces: traces.join(', ') };
}

/** @throws UsageError outside a checkout, or for an invalid file */
function publishedFigures(): readonly PublishedFigure[] {
  const folder = packageFile('experiments/figures');
  if (!existsSync(folder)) throw new UsageError('Cannot find experiments/figures: use a clone of the repository');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.yaml'));
  return files.toSorted().map((file) => {
    const path = join(folder, file);
    const content = readYaml(path) as PublishedFigure['content'];
    return {
      name: basename(file, '.yaml'),
      table: figureTableOf(content, path),
      traces: tracesOf(content),
      path,
      content: withPaths(content, undefined) as PublishedFigure['content'],
    };
  });
}

/** Those that `names` lists, or all whose traces are in the folder. @throws UsageError */
function chosenFrom(all: readonly PublishedFigure[], names: readonly string[], folder: string | undefined) {
  const known = all.map(({ name }) => name).join(', ');
  for (const name of names)
    if (!all.some((figure) => figure.name === name))
      throw new UsageError(`Cannot find table ${name}: known are ${known}`);
  const asked = names.length === 0 ? all : all.filter(({ name }) => names.includes(name));
  const missing = asked.filter(({ traces }) =>
    traces.some((trace) => folder === undefined || !existsSync(join(folder, trace))),
  );
  for (const { name, traces } of missing) {
    const why = `Cannot run ${name} without --traces FOLDER that has ${traces.join(', ')}`;
    if (names.length > 0) throw new UsageError(why);
    console.error(why);
  }
  return asked.filter((figure) => !missing.includes(figure));
}

/** @throws Error if a run fails; the results of the others are kept for the next call */
async function reproduce(figure: PublishedFigure, traces: string | undefined, jobs: number | undefined) {
  const sweep: Sweep = sweepOf(withPaths(figure.content, traces), figure.path);
  const journal = new SweepJournal(`${figure.path}.partial`, packageVersion());
  const progress = new SweepProgress(process.stderr);
  const { results } = await runSweep(sweep, { jobs, journal, progress });
  const failed = results.find((result) => 'error' in result);
  if (failed !== undefined && 'error' in failed) throw new Error(`Cannot reproduce ${figure.name}: ${failed.error}`);
  journal.remove();
  return markdownTable(figure.table, sweep, results);
}

/** Trace files and folders of measured tables, wherever they are in a sweep file. */
function traceFilesOf(value: unknown): readonly string[] {
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([name, part]) =>
    (name === 'trace' || name === 'tables') && typeof part === 'string' ? [part] : traceFilesOf(part),
  );
}

function tracesOf({ base, grid }: PublishedFigure['content']): readonly string[] {
  return [...new Set([...traceFilesOf(base), ...traceFilesOf(grid)])];
}

/** Experiments are files of the repository, and traces are files of the folder, if that is known. */
function withPaths(value: unknown, traces: string | undefined): unknown {
  if (Array.isArray(value)) return value.map((part) => withPaths(part, traces));
  if (typeof value !== 'object' || value === null) return value;
  const located = Object.entries(value).map(([name, part]) => {
    if (typeof part !== 'string' || isAbsolute(part)) return [name, withPaths(part, traces)];
    if (name === 'config' || name === 'machines') return [name, packageFile(part)];
    const inFolder = traces !== undefined && (name === 'trace' || name === 'tables');
    return [name, inFolder ? join(traces, part) : part];
  });
  return Object.fromEntries(located);
}
