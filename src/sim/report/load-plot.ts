// The loads of the prefill and decode pools over time, as one SVG.
import type { LoadOverTime } from './load-recorder.ts';

const width = 860;
const height = 260;
const margin = { left: 48, top: 36, bottom: 36, right: 16 };
const lines = [
  { name: 'prefill: mean wait over the TTFT SLO', field: 'prefill', colour: '#1f6feb' },
  { name: 'decode: mean TBT over the TBT SLO', field: 'decode', colour: '#d1242f' },
] as const;

/** Undefined where no request had an SLO. */
export function loadPlot({ seconds, poolLoads }: LoadOverTime, title: string): string | undefined {
  if (poolLoads.length === 0) return undefined;
  const minutes = Math.max(1 / 60, (seconds.at(-1) ?? 0) / 60);
  const maxLoad = Math.max(1, ...poolLoads.map(({ prefill, decode }) => Math.max(prefill, decode)));
  const x = (minute: number) => fixed(margin.left + (minute / minutes) * (width - margin.left - margin.right));
  const y = (load: number) => fixed(height - margin.bottom - (load / maxLoad) * (height - margin.top - margin.bottom));
  const curve = (field: 'prefill' | 'decode', colour: string) => {
    const points = poolLoads.map((loads, i) => `${x(seconds[i] / 60)},${y(loads[field])}`).join(' ');
    return `<polyline points="${points}" fill="none" stroke="${colour}" stroke-width="1.5"/>`;
  };
  const legend = lines.map(({ name, colour }, i) => {
    const left = margin.left + 300 * i;
    return `<rect x="${left}" y="24" width="12" height="4" fill="${colour}"/><text x="${left + 18}" y="30">${name}</text>`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="12" fill="#24292f">`,
    `<title>Loads of the pools: ${escaped(title)}</title>`,
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    `<text x="${margin.left}" y="16" font-weight="bold">${escaped(title)}</text>`,
    ...legend,
    ...ticks(maxLoad, 0.25).map((load) => horizontal(load, y(load), load === 1)),
    ...ticks(minutes, Math.max(1, Math.ceil(minutes / 12))).map(
      (minute) => `<text x="${x(minute)}" y="${height - 18}" text-anchor="middle">${minute}</text>`,
    ),
    `<text x="${width - margin.right}" y="${height - 4}" text-anchor="end">minutes</text>`,
    ...lines.map(({ field, colour }) => curve(field, colour)),
    '</svg>',
    '',
  ].join('\n');
}

function horizontal(load: number, y: number, full: boolean): string {
  const style = full ? 'stroke="#57606a" stroke-dasharray="4 4"' : 'stroke="#d0d7de"';
  return `<line x1="${margin.left}" y1="${y}" x2="${width - margin.right}" y2="${y}" ${style}/><text x="${margin.left - 6}" y="${y}" dy="4" text-anchor="end">${load}</text>`;
}

function ticks(max: number, step: number): readonly number[] {
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, i) => i * step);
}

function fixed(value: number): number {
  return Number(value.toFixed(1));
}

function escaped(text: string): string {
  return text.replace(/[<&]/g, (c) => (c === '<' ? '&lt;' : '&amp;'));
}
