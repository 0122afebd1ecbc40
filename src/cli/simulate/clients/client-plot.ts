// Throughput and median TTFT by the number of clients of a closed loop, as one SVG.
import { readable } from '../../terminal/fields.ts';
import { escaped, fixed, svgDocument, ticks } from '../svg.ts';
import { budgetName, type ClientSweep, type SweptRun } from './client-sweep.ts';

const width = 860;
const height = 340;
const panel = { width: 340, top: 64, bottom: 44 } as const;
const lefts = [64, 500] as const;
const colours = ['#57606a', '#1f6feb', '#d1242f', '#1a7f37', '#8250df'] as const;

interface Axis {
  readonly title: string;
  readonly left: number;
  readonly most: number;
  readonly of: (run: SweptRun) => number;
}

/** @param title of the plot */
export function clientPlot({ sweeps, ttftMsMax }: ClientSweep, title: string): string {
  const runs = sweeps.flatMap((sweep) => sweep.runs);
  const clientsMax = Math.max(...runs.map(({ clients }) => clients));
  const axes: readonly Axis[] = [
    {
      ...{ title: 'output tokens per second', left: lefts[0], of: (run) => run.outputTokensPerSecond },
      most: 1.1 * Math.max(...runs.map(({ outputTokensPerSecond }) => outputTokensPerSecond)),
    },
    { title: 'median TTFT, ms', left: lefts[1], of: (run) => run.ttftMs.p50, most: 3 * ttftMsMax },
  ];
  const legend = sweeps.map(({ budget }, i) => {
    const left = lefts[0] + 190 * i;
    const colour = colours[i % colours.length];
    return `<rect x="${left}" y="27" width="12" height="4" fill="${colour}"/><text x="${left + 18}" y="33" fill="${colour}">${budgetName(budget)}</text>`;
  });
  return svgDocument(width, height, 'Closed loops by number of clients', [
    `<text x="${lefts[0]}" y="16" font-weight="bold">${escaped(title)}</text>`,
    ...legend,
    `<text x="${width - 16}" y="33" text-anchor="end">hollow: not stable</text>`,
    ...axes.flatMap((axis) => [
      ...frame(axis, clientsMax),
      ...sweeps.flatMap((sweep, i) => curve(axis, clientsMax, sweep.runs, colours[i % colours.length])),
    ]),
    ...horizontal(axes[1], ttftMsMax),
  ]);
}

function placeOf({ left, most }: Axis, clientsMax: number) {
  return {
    x: (clients: number) => fixed(left + (clients / clientsMax) * panel.width),
    y: (value: number) => fixed(height - panel.bottom - (value / most) * (height - panel.top - panel.bottom)),
  };
}

function frame(axis: Axis, clientsMax: number): readonly string[] {
  const { x, y } = placeOf(axis, clientsMax);
  const right = axis.left + panel.width;
  return [
    `<text x="${axis.left}" y="${panel.top - 8}">${axis.title}</text>`,
    ...ticks(axis.most).map(
      (value) =>
        `<line x1="${axis.left}" y1="${y(value)}" x2="${right}" y2="${y(value)}" stroke="#d0d7de"/><text x="${axis.left - 6}" y="${y(value)}" dy="4" text-anchor="end">${readable(value)}</text>`,
    ),
    ...ticks(clientsMax).map((n) => `<text x="${x(n)}" y="${height - 26}" text-anchor="middle">${n}</text>`),
    `<text x="${right}" y="${height - 8}" text-anchor="end">clients</text>`,
  ];
}

function horizontal(axis: Axis, value: number): readonly string[] {
  const { y } = placeOf(axis, 1);
  return [
    `<line x1="${axis.left}" y1="${y(value)}" x2="${axis.left + panel.width}" y2="${y(value)}" stroke="#57606a" stroke-dasharray="4 4"/>`,
  ];
}

/** Values above the axis are left out. */
function curve(axis: Axis, clientsMax: number, runs: readonly SweptRun[], colour: string): readonly string[] {
  const { x, y } = placeOf(axis, clientsMax);
  const shown = runs.filter((run) => axis.of(run) <= axis.most);
  const points = shown.map((run) => `${x(run.clients)},${y(axis.of(run))}`).join(' ');
  return [
    `<polyline points="${points}" fill="none" stroke="${colour}" stroke-width="1.5"/>`,
    ...shown.map(
      (run) =>
        `<circle cx="${x(run.clients)}" cy="${y(axis.of(run))}" r="3.5" stroke="${colour}" fill="${run.isStable ? colour : '#fff'}"/>`,
    ),
  ];
}
