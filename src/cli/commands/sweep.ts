// `kvasir sweep`: simulates every combination of a grid of options with several seeds, on all cores.
import { basename } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { packageVersion } from '../package-root.ts';
import { checkOutputs, writeOutput } from '../simulate/outputs/output-file.ts';
import { runSweep, SweepJournal, SweepProgress } from '../simulate/sweep/run-sweep.ts';
import { readSweep, type Sweep } from '../simulate/sweep/sweep-file.ts';
import { sweepPage } from '../simulate/sweep/sweep-page.ts';
import { csvOf, estimatesOf, type Figure, jsonLinesOf, type SweepResult } from '../simulate/sweep/sweep-rows.ts';
import { counted } from '../terminal/fields.ts';
import { groups } from '../terminal/help.ts';
import { printTable } from '../terminal/table.ts';

const schema = z.object({
  csv: z.string().optional(),
  jsonLines: z.string().optional(),
  report: z.string().optional(),
  jobs: numeric(z.number().int().min(1).max(1024)).optional(),
});

export function sweepCommand(): Command {
  return new Command('sweep')
    .argument('<file>', 'YAML file: `base` flags of `kvasir simulate`, `grid` of lists, number of `seeds`')
    .optionsGroup(groups.output)
    .option('--csv <file>', 'Write a row for each point of the grid and seed; an interrupted sweep continues')
    .option('--json-lines <file>', 'Write an object with all figures for each point of the grid and seed')
    .option('--report <file>', 'Write an HTML page with curves by rate and intervals over the seeds')
    .option('--jobs <n>', 'Run at most this number of simulations at once (default: all cores)')
    .action(async (file: string, flags: Record<string, unknown>) => {
      const { csv, jsonLines, report, jobs } = readOptions(schema, flags);
      checkOutputs({ csv, jsonLines, report });
      const sweep = readSweep(file);
      const version = packageVersion();
      const kept = csv ?? jsonLines ?? report;
      const journal = kept === undefined ? undefined : new SweepJournal(`${kept}.partial`, version);
      const progress = new SweepProgress(process.stderr);
      const { results, continued } = await runSweep(sweep, { jobs, journal, progress });
      if (continued > 0) console.error(`Continued a sweep with ${counted(continued, 'finished run')}`);
      if (csv !== undefined) writeOutput(csv, csvOf(sweep, results));
      if (jsonLines !== undefined) writeOutput(jsonLines, jsonLinesOf(sweep, results));
      if (report !== undefined) writeOutput(report, sweepPage(sweep, results, `Sweep of ${basename(file)}`));
      const failures = reportErrors(results);
      if (failures === 0) journal?.remove();
      else process.exitCode = 1;
      printEstimates(sweep, results);
    });
}

/** Prints each different error once. @returns the number of failed runs */
function reportErrors(results: readonly SweepResult[]): number {
  const counts = new Map<string, number>();
  for (const result of results) if ('error' in result) counts.set(result.error, (counts.get(result.error) ?? 0) + 1);
  for (const [message, count] of counts) console.error(`${counted(count, 'run')} failed: ${message}`);
  return [...counts.values()].reduce((sum, count) => sum + count, 0);
}

const possible: readonly (readonly [string, Figure, number])[] = [
  ['goodput', 'goodputRequestsPerSecond', 3],
  ['ttftMsP50', 'ttftMsP50', 1],
  ['ttftMsP99', 'ttftMsP99', 1],
  ['tbtMsP50', 'tbtMsP50', 1],
  ['tbtMsP99', 'tbtMsP99', 1],
];

/** A line for each point of the grid: means over the seeds. */
function printEstimates({ columns, points }: Sweep, results: readonly SweepResult[]): void {
  const known = possible.map((column) => ({ column, estimates: estimatesOf(points, results, column[1]) }));
  const shown = known.filter(({ estimates: all }) => all.some((estimate) => estimate !== undefined));
  const printed = shown.map(({ column }) => column);
  const estimates = shown.map(({ estimates: all }) => all);
  const firsts = points.filter(({ index }, i) => i === 0 || points[i - 1].index !== index);
  const seeds = points.length / Math.max(1, firsts.length);
  const rows = firsts.map(({ settings, index }) => ({
    ...Object.fromEntries(columns.map((name) => [name, settings[name]])),
    ...Object.fromEntries(
      printed.map(([label, , digits], i) => {
        const estimate = estimates[i][index];
        if (estimate === undefined) return [label, ''];
        const mean = Number(estimate.mean.toFixed(digits));
        return [label, seeds === 1 ? mean : `${mean} ± ${Number(estimate.error.toFixed(digits))}`];
      }),
    ),
  }));
  const over = seeds === 1 ? '' : `: means over ${seeds} seeds, with 95 % intervals`;
  printTable(rows, `${counted(firsts.length, 'point')} of the grid${over}`);
}
