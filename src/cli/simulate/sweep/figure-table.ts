// A table of a published page, from the results of a sweep: which entries of the grid are rows and columns, and the text of a cell.
import { z } from 'zod';
import { UsageError } from '../../usage-error.ts';
import type { Report } from '../simulated-run.ts';
import type { Sweep } from './sweep-file.ts';
import { figureOf, isFigure, type SweepResult } from './sweep-rows.ts';

/** The entry `figure` of a sweep file. */
const figureSchema = z.strictObject({
  title: z.string(),
  /** The page with the table. */
  page: z.string(),
  /** Entries of the grid by row, with the titles of their columns. */
  rows: z.record(z.string(), z.string()),
  /** An entry of the grid with a column for each value; undefined: one column for each cell. */
  across: z.string().optional(),
  /**
   * Texts of cells by title, in which `{figure|format}` is replaced. A figure is a column of `kvasir sweep --csv` or a path in the object of
   * `simulate --json`.
   */
  cells: z.record(z.string(), z.string()),
  /** Rows of other sources above those of the sweep. */
  above: z.array(z.array(z.string())).default([]),
});

export type FigureTable = z.infer<typeof figureSchema>;

/** @param content of the sweep file @throws UsageError */
export function figureTableOf(content: unknown, path: string): FigureTable {
  const parsed = z.object({ figure: figureSchema }).safeParse(content);
  if (parsed.success) return parsed.data.figure;
  const [{ path: place, message }] = parsed.error.issues;
  throw new UsageError(`Cannot read ${path}: ${place.join('.')}: ${message}`);
}

/** The lines of the table in Markdown. Figures are means over the seeds; a cell without a run, or with one that failed, is empty. */
export function markdownTable(table: FigureTable, sweep: Sweep, results: readonly SweepResult[]): readonly string[] {
  const { rows, across, cells, above } = table;
  const entries = Object.keys(rows);
  const columns = across === undefined ? [''] : valuesOf(sweep, across);
  const titles = Object.keys(cells);
  const head = columns.flatMap((column) =>
    titles.map((title) => [column, title].filter((part) => part !== '').join(' ')),
  );
  const lines = new Map<string, string[]>();
  for (const { settings } of sweep.points) {
    const labels = entries.map((entry) => settings[entry]);
    if (lines.has(labels.join('\n'))) continue;
    const figures = columns.flatMap((column) => {
      const reports = reportsOf(sweep, results, { ...pick(settings, entries), ...(across && { [across]: column }) });
      return titles.map((title) => (reports === undefined ? '' : cellOf(cells[title], reports)));
    });
    lines.set(labels.join('\n'), [...labels, ...figures]);
  }
  const all = [[...Object.values(rows), ...head], [...entries, ...head].map(() => '---'), ...above, ...lines.values()];
  return all.map((line) => `| ${line.join(' | ')} |`.replaceAll(/ {2,}/g, ' '));
}

function valuesOf({ points }: Sweep, entry: string): readonly string[] {
  return [...new Set(points.map(({ settings }) => settings[entry]))];
}

function pick(settings: Readonly<Record<string, string>>, names: readonly string[]): Readonly<Record<string, string>> {
  return Object.fromEntries(names.map((name) => [name, settings[name]]));
}

/** Reports of all seeds of a cell; undefined if there are none, or if a run failed. */
function reportsOf({ points }: Sweep, results: readonly SweepResult[], at: Readonly<Record<string, string>>) {
  const own = results.filter((_, i) => Object.entries(at).every(([name, value]) => points[i].settings[name] === value));
  const reports = own.flatMap((result) => ('report' in result ? [result.report] : []));
  return reports.length === own.length && own.length > 0 ? reports : undefined;
}

/** Empty if a run has no such figure. */
function cellOf(template: string, reports: readonly Report[]): string {
  let isComplete = true;
  const text = template.replace(/\{([\w.]+)\|([^}]+)\}/g, (_, name: string, format: string) => {
    const values = reports.map((report) => figureAt(report, name)).filter((value) => value !== undefined);
    if (values.length < reports.length) isComplete = false;
    return formatted(values.reduce((sum, value) => sum + value, 0) / values.length, format);
  });
  return isComplete ? text : '';
}

function figureAt(report: Report, name: string): number | undefined {
  const value: unknown = isFigure(name) ? figureOf(report, name) : atPath({ ...report, report }, name);
  return typeof value === 'number' ? value : undefined;
}

function atPath(report: object, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((part, name) => (part as Readonly<Record<string, unknown>> | undefined)?.[name], report);
}

const scales: Readonly<Record<string, number>> = { n: 1, s: 1e-3, ms: 1, k: 1e-3, M: 1e-6, T: 1e-12, share: 100 };

/** 's1': milliseconds as seconds with one digit behind the point; likewise n, ms, k, M, T and share (percent). */
function formatted(value: number, format: string): string {
  const { scale = '', digits = '0' } = /^(?<scale>[A-Za-z]+)(?<digits>\d)$/.exec(format)?.groups ?? {};
  const factor = scales[scale];
  if (factor === undefined) throw new UsageError(`Cannot show a figure as ${format}: write n0, s1, ms0, M1 or share1`);
  const options = { minimumFractionDigits: Number(digits), maximumFractionDigits: Number(digits) };
  return (value * factor).toLocaleString('en', options);
}

/** The page with new lines between the marks of a figure. @throws UsageError without marks */
export function withTable(page: string, name: string, lines: readonly string[]): string {
  const begin = `<!-- reproduce ${name} -->\n`;
  const end = '<!-- end -->';
  const from = page.indexOf(begin);
  const to = page.indexOf(end, from);
  if (from < 0 || to < 0) throw new UsageError(`Cannot find the table ${name}: the page has no ${begin.trim()}`);
  return `${page.slice(0, from + begin.length)}\n${lines.join('\n')}\n\n${page.slice(to)}`;
}
