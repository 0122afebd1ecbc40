// The page of a sweep: figures against the rate, with intervals over the seeds, in the style of the page of a run.
import { readFileSync } from 'node:fs';
import { packageFile } from '../../package-root.ts';
import { readable } from '../../terminal/fields.ts';
import { escaped, fixed, ticks } from '../svg.ts';
import type { Sweep } from './sweep-file.ts';
import { type Estimate, estimatesOf, type Figure, type SweepResult } from './sweep-rows.ts';

const width = 520;
const height = 280;
const area = { left: 64, right: 12, top: 10, bottom: 40 } as const;
const colours = ['blue', 'amber', 'green', 'red', 'violet'] as const;

interface Mark {
  readonly x: Estimate;
  readonly y: Estimate;
}

interface Curve {
  readonly name: string;
  readonly marks: readonly Mark[];
}

interface Panel {
  readonly title: string;
  readonly across: string;
  readonly curves: readonly Curve[];
  /** Marks that no other mark is below and left of are joined, instead of the marks of a curve. */
  readonly showsFrontier?: boolean;
}

/** Figures by panel. */
const panels: readonly (readonly [string, Figure])[] = [
  ['Goodput, requests/s', 'goodputRequestsPerSecond'],
  ['Output tokens/s', 'outputTokensPerSecond'],
  ['TTFT p50, ms', 'ttftMsP50'],
  ['TTFT p99, ms', 'ttftMsP99'],
  ['TBT p50, ms', 'tbtMsP50'],
  ['TBT p99, ms', 'tbtMsP99'],
];

/** @param title of the page */
export function sweepPage(sweep: Sweep, results: readonly SweepResult[], title: string): string {
  const { axis, series } = axesOf(sweep);
  const of = (name: Figure) => estimatesOf(sweep.points, results, name);
  const price = of('pricePerMillionTokens');
  const byCost = (title: string, figure: Figure): Panel => ({
    title,
    across: 'price per million output tokens',
    curves: curvesOf(series, of(figure), ({ index }) => price[index]),
    showsFrontier: true,
  });
  const all: readonly Panel[] = [
    ...panels.map(([name, figure]) => ({
      title: name,
      across: axis ?? 'point of the grid',
      curves: curvesOf(series, of(figure), (row) => ({ mean: row.at, error: 0 })),
    })),
    byCost('TTFT p99, ms, by cost', 'ttftMsP99'),
    byCost('TBT p99, ms, by cost', 'tbtMsP99'),
  ].filter(({ curves }) => curves.some(({ marks }) => marks.length > 0));
  const failed = results.filter((result) => 'error' in result).length;
  const seeds =
    sweep.points.length /
    Math.max(
      1,
      series.reduce((sum, { rows }) => sum + rows.length, 0),
    );
  const about = `${sweep.points.length} runs, ${seeds} of each point. Bars: 95 % intervals of the means over the seeds. Dashed: Pareto frontiers.`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>${escaped(title)}</title>
<style>${readFileSync(packageFile('web/drawing/style.css'), 'utf8')}
.grid { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.card svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; fill: var(--soft); }
@media (max-width: 560px) { .card svg { font-size: 16px; } }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 16px 0 12px; }
.legend i { display: inline-block; width: 12px; height: 4px; margin-right: 6px; vertical-align: middle; }
</style>
</head>
<body>
<main>
<header><h1>${escaped(title)}</h1><p>${about}${failed === 0 ? '' : ` ${failed} runs failed.`}</p></header>
<div class="legend">${series.map(({ name }, i) => `<span><i style="background:var(--${colourOf(i)})"></i>${escaped(name)}</span>`).join('')}</div>
<section class="grid">${all.map((panel) => `<div class="card"><h2>${escaped(panel.title)}</h2>${plot(panel)}</div>`).join('\n')}</section>
</main>
</body>
</html>
`;
}

interface Series {
  readonly name: string;
  /** Points of the grid with their places on the axis, in its order. */
  readonly rows: readonly { readonly index: number; readonly at: number }[];
}

/** The axis is the rate, else another entry of the grid with numbers; the other entries tell curves apart. */
function axesOf({ columns, points }: Sweep): { readonly axis: string | undefined; readonly series: readonly Series[] } {
  const isNumeric = (name: string) => points.every(({ settings }) => Number.isFinite(Number(settings[name])));
  const axis = ['rate', 'speed', 'clients', ...columns].find((name) => columns.includes(name) && isNumeric(name));
  const series = new Map<string, Map<number, number>>();
  for (const { index, settings } of points) {
    const others = columns.filter((name) => name !== axis).map((name) => `${name} ${settings[name]}`);
    const name = others.length === 0 ? 'all runs' : others.join(', ');
    const rows = series.get(name) ?? new Map<number, number>();
    series.set(name, rows.set(index, axis === undefined ? index + 1 : Number(settings[axis])));
  }
  const sorted = [...series].map(([name, rows]) => {
    const inOrder = [...rows].map(([index, at]) => ({ index, at })).sort((a, b) => a.at - b.at);
    return { name, rows: inOrder };
  });
  return { axis, series: sorted };
}

/** Points without a figure are left out. */
function curvesOf(
  series: readonly Series[],
  values: readonly (Estimate | undefined)[],
  across: (row: Series['rows'][number]) => Estimate | undefined,
): readonly Curve[] {
  return series.map(({ name, rows }) => ({
    name,
    marks: rows.flatMap((row) => {
      const [x, y] = [across(row), values[row.index]];
      return x === undefined || y === undefined ? [] : [{ x, y }];
    }),
  }));
}

function colourOf(series: number): string {
  return colours[series % colours.length];
}

function plot({ title, across, curves, showsFrontier = false }: Panel): string {
  const marks = curves.flatMap((curve) => curve.marks);
  const most = (end: (mark: Mark) => number) => Math.max(0, ...marks.map(end)) || 1;
  const xMax = most(({ x }) => x.mean + x.error);
  const yMax = most(({ y }) => y.mean + y.error);
  const inner = { width: width - area.left - area.right, height: height - area.top - area.bottom };
  const x = (value: number) => fixed(area.left + (Math.max(0, value) / xMax) * inner.width);
  const y = (value: number) => fixed(height - area.bottom - (Math.max(0, value) / yMax) * inner.height);
  const line = (from: readonly [number, number], to: readonly [number, number], stroke: string) =>
    `<line x1="${x(from[0])}" y1="${y(from[1])}" x2="${x(to[0])}" y2="${y(to[1])}" ${stroke}/>`;
  const path = (own: readonly Mark[], stroke: string) =>
    `<polyline points="${own.map((mark) => `${x(mark.x.mean)},${y(mark.y.mean)}`).join(' ')}" fill="none" ${stroke}/>`;
  const rows = ticks(yMax).map(
    (value) =>
      `${line([0, value], [xMax, value], 'stroke="var(--grid)"')}<text x="${area.left - 6}" y="${y(value)}" dy="4" text-anchor="end">${readable(value)}</text>`,
  );
  const labels = ticks(xMax).map(
    (value) => `<text x="${x(value)}" y="${height - 22}" text-anchor="middle">${readable(value)}</text>`,
  );
  const drawn = curves.flatMap(({ name, marks: own }, i) => {
    const stroke = `stroke="var(--${colourOf(i)})"`;
    const points = own.map(({ x: across, y: up }) => {
      const bars = [
        line([across.mean, up.mean - up.error], [across.mean, up.mean + up.error], stroke),
        ...(across.error === 0
          ? []
          : [line([across.mean - across.error, up.mean], [across.mean + across.error, up.mean], stroke)]),
      ];
      const text = `${name}: ${readable(up.mean)} ± ${readable(up.error)} at ${readable(across.mean)}`;
      const circle = `<circle cx="${x(across.mean)}" cy="${y(up.mean)}" r="3" fill="var(--${colourOf(i)})"><title>${escaped(text)}</title></circle>`;
      return `${bars.join('')}${circle}`;
    });
    return showsFrontier ? points : [path(own, `${stroke} stroke-width="1.8"`), ...points];
  });
  return [
    `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escaped(title).replaceAll('"', '&quot;')}">`,
    ...rows,
    ...labels,
    `<text x="${width - area.right}" y="${height - 6}" text-anchor="end">${escaped(across)}</text>`,
    ...(showsFrontier ? [path(frontierOf(marks), 'stroke="var(--soft)" stroke-dasharray="5 4"')] : []),
    ...drawn,
    '</svg>',
  ].join('');
}

/** The marks without another one that is at most as far right and as high, from left to right. */
function frontierOf(marks: readonly Mark[]): readonly Mark[] {
  const frontier: Mark[] = [];
  for (const mark of marks.toSorted((a, b) => a.x.mean - b.x.mean || a.y.mean - b.y.mean))
    if (mark.y.mean < (frontier.at(-1)?.y.mean ?? Number.POSITIVE_INFINITY)) frontier.push(mark);
  return frontier;
}
