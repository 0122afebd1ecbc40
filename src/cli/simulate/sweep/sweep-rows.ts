// The figures of the runs of a sweep: as columns of a CSV file, and as means with intervals over the seeds.
import { hasSlo, type Report } from '../simulated-run.ts';
import type { Sweep, SweepPoint } from './sweep-file.ts';

/** A run that has ended: its figures, or why there are none. */
export type SweepResult = { readonly report: Report } | { readonly error: string };

/** In the order of the columns. */
const figures = {
  requests: ({ requests }) => requests,
  completed: ({ completed }) => completed,
  refused: ({ refused }) => refused.atPrefill + refused.atDecode - (refused.byReason.failed ?? 0),
  failed: ({ refused }) => refused.byReason.failed ?? 0,
  // Undefined without `find-rate`.
  highestRate: ({ highestRate }) => highestRate?.rate,
  // Undefined without an SLO.
  withinSlo: ({ withinSlo, requests, settings }) => (hasSlo(settings) ? perRequest(withinSlo, requests) : undefined),
  requestsPerSecond: ({ completed, simulatedSeconds }) => perSecond(completed, simulatedSeconds),
  goodputRequestsPerSecond: ({ goodputRequestsPerSecond, settings }) =>
    hasSlo(settings) ? goodputRequestsPerSecond : undefined,
  outputTokensPerSecond: ({ decodeTokens, simulatedSeconds }) => perSecond(decodeTokens, simulatedSeconds),
  ttftMsMean: ({ ttftMs }) => ttftMs.mean,
  ttftMsP50: ({ ttftMs }) => ttftMs.p50,
  ttftMsP90: ({ ttftMs }) => ttftMs.p90,
  ttftMsP99: ({ ttftMs }) => ttftMs.p99,
  tbtMsMean: ({ tbtMs }) => tbtMs.mean,
  tbtMsP50: ({ tbtMs }) => tbtMs.p50,
  tbtMsP90: ({ tbtMs }) => tbtMs.p90,
  tbtMsP99: ({ tbtMs }) => tbtMs.p99,
  hitRatioTokens: ({ hitRatioTokens }) => hitRatioTokens,
  preemptions: ({ preemptions }) => preemptions,
  pricePerHour: ({ pricePerHour }) => pricePerHour,
  pricePerMillionTokens: ({ pricePerHour, decodeTokens, simulatedSeconds }) =>
    pricePerHour === undefined || decodeTokens === 0
      ? undefined
      : (pricePerHour * (simulatedSeconds / 3600) * 1e6) / decodeTokens,
  simulatedSeconds: ({ simulatedSeconds }) => simulatedSeconds,
} satisfies Readonly<Record<string, (report: Report) => number | undefined>>;

export type Figure = keyof typeof figures;
const figureNames = Object.keys(figures) as readonly Figure[];

export function isFigure(name: string): name is Figure {
  return Object.hasOwn(figures, name);
}

/** Undefined: the run has no such figure. */
export function figureOf(report: Report, name: Figure): number | undefined {
  return figures[name](report);
}

function perRequest(count: number, requests: number): number {
  return requests === 0 ? 0 : count / requests;
}

function perSecond(count: number, seconds: number): number {
  return seconds === 0 ? 0 : count / seconds;
}

/** A row for each run, in the order of the points. */
export function csvOf({ columns, points }: Sweep, results: readonly SweepResult[]): string {
  const header = [...columns, 'seed', ...figureNames, 'stateHash', 'error'];
  const rows = points.map(({ settings, seed }, i) => {
    const result = results[i];
    const report = 'report' in result ? result.report : undefined;
    const values = figureNames.map((name) => (report === undefined ? undefined : figures[name](report)));
    const ends = [report?.stateHash, 'error' in result ? result.error : undefined];
    return [...columns.map((name) => settings[name]), seed, ...values, ...ends].map(csvCell).join(',');
  });
  return `${[header.map(csvCell).join(','), ...rows].join('\n')}\n`;
}

/** An object for each run: settings and seed, with the object of `simulate --json`. */
export function jsonLinesOf({ points }: Sweep, results: readonly SweepResult[]): string {
  return points.map(({ settings, seed }, i) => `${JSON.stringify({ settings, seed, ...results[i] })}\n`).join('');
}

function csvCell(value: string | number | undefined): string {
  const text = value === undefined ? '' : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The mean of a figure over the seeds of a point, and the half-width of its 95 % interval: 0 with one seed. */
export interface Estimate {
  readonly mean: number;
  readonly error: number;
}

/** (points of the grid): undefined: a run failed or has no such figure. */
export function estimatesOf(
  points: readonly SweepPoint[],
  results: readonly SweepResult[],
  name: Figure,
): readonly (Estimate | undefined)[] {
  const values: (number | undefined)[][] = [];
  for (const [i, { index }] of points.entries()) {
    const result = results[i];
    values[index] ??= [];
    values[index].push('report' in result ? figures[name](result.report) : undefined);
  }
  return values.map(estimateOf);
}

/** 97.5 % quantiles of Student's t by degrees of freedom, from 1 on. */
const quantiles = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145];

export function estimateOf(values: readonly (number | undefined)[]): Estimate | undefined {
  const known = values.filter((value) => value !== undefined);
  if (known.length === 0 || known.length < values.length) return undefined;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  if (known.length === 1) return { mean, error: 0 };
  const variance = known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (known.length - 1);
  return { mean, error: (quantiles[known.length - 2] ?? 2.05) * Math.sqrt(variance / known.length) };
}
