// Simulated against measured latencies as one SVG: two plots with logarithmic axes, a dot for each point.
import type { PointErrors } from './errors.ts';

const size = 420;
const margin = { left: 64, top: 36, bottom: 48, right: 16 };
const colours = ['#1f6feb', '#d1242f', '#1a7f37', '#9a6700', '#8250df', '#bf3989'];
/** Dotted lines at this error in both directions. */
const band = 1.2;

interface Dot {
  readonly x: number;
  readonly y: number;
  readonly colour: string;
  readonly title: string;
}

export function scatterSvg(errors: readonly PointErrors[]): string {
  const groupOf = ({ point }: PointErrors) => `${point.model} ${point.hardware} ${point.precision}`;
  const groups = [...new Set(errors.map(groupOf))].sort();
  const colourOf = (error: PointErrors) => colours[groups.indexOf(groupOf(error)) % colours.length];
  const dots = (measured: 'tpotMs' | 'ttftMs') =>
    errors.map((error) => ({
      x: error.point[measured],
      y: error.served[measured],
      colour: colourOf(error),
      title: `${groupOf(error)} tp${error.point.tensorParallel}, ${error.point.concurrency} clients, ${error.point.inputTokens} + ${error.point.outputTokens} tokens`,
    }));
  const width = 2 * size;
  const height = size + 24 * Math.ceil(groups.length / 3) + 8;
  const legend = groups.map((group, i) => {
    const x = margin.left + (i % 3) * 250;
    const y = size + 12 + Math.floor(i / 3) * 24;
    return `<circle cx="${x}" cy="${y}" r="5" fill="${colours[i % colours.length]}"/><text x="${x + 12}" y="${y + 4}">${group}</text>`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="13" fill="#24292f">`,
    '<title>Simulated against measured TPOT and TTFT</title>',
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    plot('TPOT, ms', dots('tpotMs'), 0),
    plot('TTFT, ms', dots('ttftMs'), size),
    ...legend,
    '</svg>',
    '',
  ].join('\n');
}

function plot(name: string, dots: readonly Dot[], left: number): string {
  const values = dots.flatMap(({ x, y }) => [x, y]);
  const from = Math.log10(Math.min(...values)) - 0.05;
  const to = Math.log10(Math.max(...values)) + 0.05;
  const inner = size - margin.left - margin.right;
  const high = size - margin.top - margin.bottom;
  const share = (value: number) => (Math.log10(value) - from) / (to - from);
  const x = (value: number) => fixed(left + margin.left + share(value) * inner);
  const y = (value: number) => fixed(margin.top + (1 - share(value)) * high);
  const least = 10 ** from;
  const most = 10 ** to;
  const line = (factor: number, style: string) => {
    const start = factor < 1 ? least / factor : least;
    const end = factor > 1 ? most / factor : most;
    return `<line x1="${x(start)}" y1="${y(start * factor)}" x2="${x(end)}" y2="${y(end * factor)}" stroke="#57606a" ${style}/>`;
  };
  const ticks = ticksBetween(least, most).flatMap((tick) => [
    `<line x1="${x(tick)}" y1="${y(least)}" x2="${x(tick)}" y2="${y(most)}" stroke="#d0d7de"/>`,
    `<line x1="${x(least)}" y1="${y(tick)}" x2="${x(most)}" y2="${y(tick)}" stroke="#d0d7de"/>`,
    `<text x="${x(tick)}" y="${size - margin.bottom + 18}" text-anchor="middle">${tick}</text>`,
    `<text x="${left + margin.left - 6}" y="${y(tick)}" dy="4" text-anchor="end">${tick}</text>`,
  ]);
  const middle = left + margin.left + inner / 2;
  return [
    `<text x="${middle}" y="22" text-anchor="middle" font-weight="bold">${name}</text>`,
    ...ticks,
    line(1, ''),
    line(band, 'stroke-dasharray="4 4"'),
    line(1 / band, 'stroke-dasharray="4 4"'),
    ...dots.map(
      (dot) =>
        `<circle cx="${x(dot.x)}" cy="${y(dot.y)}" r="3.5" fill="${dot.colour}" fill-opacity="0.65"><title>${dot.title}</title></circle>`,
    ),
    `<text x="${middle}" y="${size - 10}" text-anchor="middle">measured</text>`,
    `<text transform="translate(${left + 16} ${margin.top + high / 2}) rotate(-90)" text-anchor="middle">simulated</text>`,
  ].join('\n');
}

/** 1, 2 and 5 times powers of ten, or only powers of ten over a wide range. */
function ticksBetween(least: number, most: number): readonly number[] {
  const wide = most / least > 300;
  const ticks: number[] = [];
  for (let power = -3; power <= 7; power++) {
    for (const digit of wide ? [1] : [1, 2, 5]) {
      const tick = digit * 10 ** power;
      if (tick >= least && tick <= most) ticks.push(tick);
    }
  }
  return ticks;
}

function fixed(value: number): string {
  return value.toFixed(1);
}
