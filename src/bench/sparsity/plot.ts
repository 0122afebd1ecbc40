// Recall by budget and by depth as one SVG: two plots with a line for each method.
import type { SparsityRow } from './bench.ts';
import { recallTasks } from './recall.ts';

const size = 420;
const margin = { left: 56, top: 36, bottom: 48, right: 16 };
const colours = ['#57606a', '#1f6feb', '#d1242f', '#1a7f37', '#8250df', '#9a6700', '#bf3989', '#0a7ea4'];

interface Line {
  readonly method: string;
  readonly colour: string;
  readonly points: readonly { readonly x: number; readonly y: number }[];
}

/** Undefined without rows of recall. @param budget of the plot by depth, in percent */
export function recallPlot(rows: readonly SparsityRow[], budget: number): string | undefined {
  const recall = rows.filter(({ task }) => (recallTasks as readonly string[]).includes(task));
  if (recall.length === 0) return undefined;
  const methods = [...new Set(recall.map(({ method }) => method))];
  const linesOf = (of: (method: string) => readonly SparsityRow[], x: (row: SparsityRow) => number): Line[] =>
    methods.map((method, i) => ({ method, colour: colours[i % colours.length], points: means(of(method), x) }));
  const full = means(
    recall.filter(({ method }) => method === 'full'),
    () => 100,
  );
  const byBudget = linesOf(
    (method) => recall.filter((row) => row.method === method),
    (row) => row.budget,
  ).map((line) => ({ ...line, points: line.method === 'full' ? level(full[0]?.y, recall) : line.points }));
  const byDepth = linesOf(
    (method) => recall.filter((row) => row.method === method && (row.budget === budget || method === 'full')),
    (row) => row.depth ?? Number.NaN,
  );
  const legend = methods.map((method, i) => {
    const x = margin.left + (i % 4) * 180;
    const y = size + 8 + Math.floor(i / 4) * 22;
    return `<rect x="${x}" y="${y - 4}" width="16" height="4" fill="${colours[i % colours.length]}"/><text x="${x + 22}" y="${y + 3}">${method}</text>`;
  });
  const height = size + 24 * Math.ceil(methods.length / 4);
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${2 * size} ${height}" width="${2 * size}" height="${height}" font-family="sans-serif" font-size="13" fill="#24292f">`,
    '<title>Recall by budget and by depth</title>',
    `<rect width="${2 * size}" height="${height}" fill="#fff"/>`,
    plot('recall, %, by budget', 'tokens of a sparse layer, % of the prompt', byBudget, 0),
    plot(`recall, %, by depth, at a budget of ${budget} %`, 'depth of the fact, % of the text', byDepth, size),
    ...legend,
    '</svg>',
    '',
  ].join('\n');
}

/** Mean scores by x, ascending. */
function means(rows: readonly SparsityRow[], x: (row: SparsityRow) => number): Line['points'] {
  const scores = new Map<number, number[]>();
  for (const row of rows) {
    const at = x(row);
    if (!Number.isNaN(at)) scores.set(at, [...(scores.get(at) ?? []), row.score]);
  }
  return [...scores]
    .map(([at, all]) => ({ x: at, y: all.reduce((sum, score) => sum + score, 0) / all.length }))
    .sort((a, b) => a.x - b.x);
}

/** The score of the full model over all budgets. */
function level(score: number | undefined, rows: readonly SparsityRow[]): Line['points'] {
  if (score === undefined) return [];
  const budgets = rows.map(({ budget }) => budget).sort((a, b) => a - b);
  return [budgets[0], 100].map((x) => ({ x, y: score }));
}

function plot(name: string, axis: string, lines: readonly Line[], left: number): string {
  const wide = size - margin.left - margin.right;
  const high = size - margin.top - margin.bottom;
  const x = (value: number) => fixed(left + margin.left + (value / 100) * wide);
  const y = (value: number) => fixed(margin.top + (1 - value / 100) * high);
  const ticks = [0, 25, 50, 75, 100].flatMap((tick) => [
    `<line x1="${x(0)}" y1="${y(tick)}" x2="${x(100)}" y2="${y(tick)}" stroke="#d0d7de"/>`,
    `<text x="${x(0)}" y="${y(tick)}" dx="-6" dy="4" text-anchor="end">${tick}</text>`,
    `<text x="${x(tick)}" y="${size - margin.bottom + 18}" text-anchor="middle">${tick}</text>`,
  ]);
  const middle = left + margin.left + wide / 2;
  return [
    `<text x="${middle}" y="22" text-anchor="middle" font-weight="bold">${name}</text>`,
    ...ticks,
    ...lines.map(({ method, colour, points }) => {
      const path = points.map((point) => `${x(point.x)},${y(point.y)}`).join(' ');
      return `<polyline points="${path}" fill="none" stroke="${colour}" stroke-width="2"><title>${method}</title></polyline>`;
    }),
    ...lines.flatMap(({ colour, points }) =>
      points.map((point) => `<circle cx="${x(point.x)}" cy="${y(point.y)}" r="3" fill="${colour}"/>`),
    ),
    `<text x="${middle}" y="${size - 12}" text-anchor="middle">${axis}</text>`,
  ].join('\n');
}

function fixed(value: number): string {
  return value.toFixed(1);
}
