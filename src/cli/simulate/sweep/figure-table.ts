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
   * `simulate --json`, with `@'value'` that of the run with this value of an entry of the grid. Several are joined by ` + `, ` - `, ` * ` and ` / `,
   * from left to right.
   */
  cells: z.record(z.string(), z.string()),
  /** Further columns by title, one for each row: the text of a cell, as in `cells`, for the first value of `across`. */
  after: z.record(z.string(), z.string()).default({}),
  /** Further columns by title, from other sources: the text by the first label of a row. */
  beside: z.record(z.string(), z.record(z.string(), z.string())).default({}),
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
  const { rows, across, cells, after, beside, above } = table;
  const entries = Object.keys(rows);
  const columns = across === undefined ? [''] : valuesOf(sweep, across);
  const titles = Object.keys(cells);
  const head = columns.flatMap((column) =>
    titles.map((title) => [column, title].filter((part) => part !== '').join(' ')),
  );
  const heads = [...head, ...Object.keys(after), ...Object.keys(beside)];
  const runs = new Runs(sweep, results);
  const lines = new Map<string, string[]>();
  for (const { settings } of sweep.points) {
    const labels = entries.map((entry) => settings[entry]);
    if (lines.has(labels.join('\n'))) continue;
    const at = (column: string) => ({ ...pick(settings, entries), ...(across && { [across]: column }) });
    const figures = columns.flatMap((column) => titles.map((title) => runs.textOf(cells[title], at(column))));
    const more = Object.values(after).map((template) => runs.textOf(template, at(columns[0])));
    const others = Object.values(beside).map((texts) => texts[labels[0]] ?? '');
    lines.set(labels.join('\n'), [...labels, ...figures, ...more, ...others]);
  }
  const all = [
    [...Object.values(rows), ...heads],
    [...entries, ...heads].map(() => '---'),
    ...above,
    ...lines.values(),
  ];
  return all.map((line) => `| ${line.join(' | ')} |`.replaceAll(/ {2,}/g, ' '));
}

function valuesOf({ points }: Sweep, entry: string): readonly string[] {
  return [...new Set(points.map(({ settings }) => settings[entry]))];
}

type Settings = Readonly<Record<string, string>>;

function pick(settings: Settings, names: readonly string[]): Settings {
  return Object.fromEntries(names.map((name) => [name, settings[name]]));
}

/** A figure, with another value of an entry of the grid in quotes behind `@`. */
const operand = String.raw`[\w.]+(?:@'[^']*')?`;
const templatePattern = new RegExp(String.raw`\{(${operand}(?: [-+*/] ${operand})*)\|([^}]+)\}`, 'g');

/** The runs of a sweep by their settings. */
class Runs {
  readonly #sweep: Sweep;
  readonly #results: readonly SweepResult[];

  constructor(sweep: Sweep, results: readonly SweepResult[]) {
    this.#sweep = sweep;
    this.#results = results;
  }

  /** The template with its figures, which are computed for each seed; empty if a run has no such figure. */
  textOf(template: string, at: Settings): string {
    let isComplete = true;
    const text = template.replace(templatePattern, (_, expression: string, format: string) => {
      const values = this.#valuesOf(expression, at);
      if (values === undefined) isComplete = false;
      return values === undefined ? '' : shown(values, format);
    });
    return isComplete ? text : '';
  }

  /** The value of an expression for each seed; undefined: a run has no such figure. */
  #valuesOf(expression: string, at: Settings): readonly number[] | undefined {
    const [first = '', ...rest] = expression.split(/ (?=[-+*/] )/);
    let values = this.#operand(first, at);
    for (const part of rest) {
      const right = this.#operand(part.slice(2), at);
      values = right && values?.map((value, seed) => operations[part[0]](value, right[seed] ?? right[0]));
    }
    return values?.every(Number.isFinite) === true ? values : undefined;
  }

  #operand(text: string, at: Settings): readonly number[] | undefined {
    if (/^\d/.test(text)) return [Number(text)];
    const [, name = text, value] = /^([\w.]+)(?:@'(.*)')?$/.exec(text) ?? [];
    const reports = this.#reportsOf(value === undefined ? at : this.#with(at, value));
    const values = reports?.map((report) => figureAt(report, name)).filter((known) => known !== undefined);
    return values !== undefined && values.length === reports?.length ? values : undefined;
  }

  /** The settings with another value of the entry that has it. @throws UsageError if no entry has it */
  #with(at: Settings, value: string): Settings {
    const entry = this.#sweep.columns.find((name) => valuesOf(this.#sweep, name).includes(value));
    if (entry === undefined) throw new UsageError(`Cannot compare with '${value}': no entry of the grid has it`);
    return { ...at, [entry]: value };
  }

  /** Reports of all seeds; undefined if there are none, or if a run failed. */
  #reportsOf(at: Settings): readonly Report[] | undefined {
    const { points } = this.#sweep;
    const isIncluded = (settings: Settings) => Object.entries(at).every(([name, value]) => settings[name] === value);
    const own = this.#results.filter((_, i) => isIncluded(points[i].settings));
    const reports = own.flatMap((result) => ('report' in result ? [result.report] : []));
    return reports.length === own.length && own.length > 0 ? reports : undefined;
  }
}

const operations: Readonly<Record<string, (a: number, b: number) => number>> = {
  '+': (a, b) => a + b,
  '-': (a, b) => a - b,
  '*': (a, b) => a * b,
  '/': (a, b) => a / b,
};

function figureAt(report: Report, name: string): number | undefined {
  const value: unknown = isFigure(name) ? figureOf(report, name) : atPath({ ...report, report }, name);
  return typeof value === 'number' ? value : undefined;
}

function atPath(report: object, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((part, name) => (part as Readonly<Record<string, unknown>> | undefined)?.[name], report);
}

const scales: Readonly<Record<string, number>> = {
  n: 1,
  s: 1e-3,
  ms: 1,
  k: 1e-3,
  M: 1e-6,
  G: 1e-9,
  T: 1e-12,
  share: 100,
};

/** 's1': milliseconds as seconds with one digit behind the point; likewise n, ms, k, M, G, T and share (percent). 'n0~': mean (least to most). */
function shown(values: readonly number[], format: string): string {
  const {
    scale = '',
    digits = '0',
    range,
  } = /^(?<scale>[A-Za-z]+)(?<digits>\d)(?<range>~)?$/.exec(format)?.groups ?? {};
  const factor = scales[scale];
  if (factor === undefined) throw new UsageError(`Cannot show a figure as ${format}: write n0, s1, ms0, M1 or share1`);
  const options = { minimumFractionDigits: Number(digits), maximumFractionDigits: Number(digits) };
  const text = (value: number) => (value * factor).toLocaleString('en', options);
  const mean = text(values.reduce((sum, value) => sum + value, 0) / values.length);
  const [least, most] = [text(Math.min(...values)), text(Math.max(...values))];
  return range === undefined || least === most ? mean : `${mean} (${least} to ${most})`;
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
