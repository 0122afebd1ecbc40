// Plots of the report: lines over simulated time, and distributions.
import { clock, colour, compact, element, latency, round, wash } from './format.mjs';

const { uPlot } = window;

function card(place, title, note) {
  const plot = element('div', { className: 'plot' });
  place.append(element('div', { className: 'card' }, element('h2', {}, title), element('p', {}, note), plot));
  return plot;
}

/** Draws each plot after the layout, and again when the width or the theme changes. */
const plots = [];

export const onDraw = (redraw) => plots.push(redraw);

export function drawAll() {
  for (const redraw of plots) redraw();
  return plots.length;
}

function draw(target, build) {
  let plot;
  plots.push(() => {
    plot?.destroy();
    const { data, ...options } = build();
    plot = new uPlot({ width: target.clientWidth, height: 240, ...options }, data, target);
  });
}

const axis = (more) => ({
  stroke: colour('soft'),
  font: '12px system-ui, sans-serif',
  grid: { stroke: colour('grid'), width: 1 },
  ticks: { show: false },
  ...more,
});

const steps = (seconds) => [1, 2, 5, 10, 20, 30].map((n) => n * seconds);
const timeAxis = () =>
  axis({
    incrs: [0.001, 0.01, 0.1, ...steps(1), ...steps(60), ...[1, 2, 4, 6, 12, 24].map((n) => n * 3600)],
    values: (_, splits) => splits.map(clock),
    space: 70,
    size: 30,
  });

/** Round numbers between two numbers, with as many per power of ten as labels fit. */
function logSplits(min, max, width) {
  const choices = [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]].map((digits) => {
    const splits = [];
    for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++)
      splits.push(...digits.map((digit) => Number((digit * 10 ** power).toPrecision(3))));
    return splits.filter((split) => split >= min && split <= max);
  });
  return choices.find((splits) => splits.length * 64 <= width) ?? choices.at(-1);
}

/** Lines over simulated time; their cursors move together. */
export function overTime(place, seconds, { title, note, series, format = compact, most }) {
  draw(card(place, title, note), () => ({
    data: [seconds, ...series.map(({ values }) => values)],
    scales: { x: { time: false }, y: { range: (_, __, max) => [0, most ?? (max > 0 ? max * 1.05 : 1)] } },
    axes: [timeAxis(), axis({ values: (_, splits) => splits.map(format), size: 58 })],
    cursor: { sync: { key: 'time' }, points: { size: 6 }, y: false },
    series: [
      { label: 'at', value: (_, at) => (at === null ? '–' : clock(at)) },
      ...series.map(({ label, hue, fill = 10, width = 1.6 }) => ({
        label,
        stroke: colour(hue),
        fill: fill === 0 ? undefined : wash(hue, fill),
        width,
        points: { show: false },
        value: (_, value) => (value === null || value === undefined ? '–' : format(value)),
      })),
    ],
  }));
}

/** A distribution over a logarithmic axis: share of requests per bin, and cumulative. */
export function distribution(place, title, note, { bins, count, p50, p90, p99 }, hue) {
  const target = card(place, title, note);
  if (count === 0) return target.append('No request had one.');
  const last = bins.at(-1);
  const edges = [...bins.map(([from]) => Math.max(from, 1e-3)), last[1]];
  const share = [...bins.map(([, , n]) => (100 * n) / count), 0];
  const sums = [0];
  for (const [, , n] of bins) sums.push(sums.at(-1) + (100 * n) / count);
  const marks = { plugins: [percentileMarks({ p50, p90, p99 })] };
  draw(target, () => ({
    ...marks,
    data: [edges, share, sums],
    scales: {
      x: { time: false, distr: 3, range: (_, min, max) => [min, max > min ? max : min * 1.1] },
      share: { range: (_, __, max) => [0, max * 1.1] },
      sum: { range: [0, 100] },
    },
    axes: [
      axis({
        splits: ({ bbox }, _, min, max) => logSplits(min, max, bbox.width / devicePixelRatio),
        filter: (_, splits) => splits,
        values: (_, splits) => splits.map(latency),
        size: 30,
      }),
      axis({ scale: 'share', values: (_, splits) => splits.map((y) => `${round(y)} %`), size: 58 }),
      axis({
        scale: 'sum',
        side: 1,
        grid: { show: false },
        values: (_, splits) => splits.map((y) => `${y} %`),
        size: 52,
      }),
    ],
    cursor: { y: false, points: { show: false } },
    series: [
      { label: 'from', value: (_, ms) => (ms === null ? '–' : latency(ms)) },
      {
        label: 'requests here',
        scale: 'share',
        stroke: colour(hue),
        fill: wash(hue, 35),
        width: 1,
        paths: uPlot.paths.stepped({ align: 1 }),
        points: { show: false },
        value: (_, y) => (y === null ? '–' : `${round(y)} %`),
      },
      {
        label: 'below',
        scale: 'sum',
        stroke: colour('soft'),
        width: 1.4,
        points: { show: false },
        value: (_, y) => (y === null ? '–' : `${y.toFixed(1)} %`),
      },
    ],
  }));
}

/** Dashed lines with names, on separate rows if they would overlap. */
function percentileMarks(marks) {
  return {
    hooks: {
      draw: ({ ctx, bbox, valToPos }) => {
        const scale = devicePixelRatio;
        ctx.save();
        ctx.font = `${11 * scale}px system-ui, sans-serif`;
        ctx.setLineDash([4 * scale, 3 * scale]);
        ctx.lineWidth = scale;
        Object.entries(marks).forEach(([name, ms], row) => {
          const x = valToPos(ms, 'x', true);
          if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
          ctx.strokeStyle = colour('soft');
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          const text = `${name} ${latency(ms)}`;
          const left = x + 5 * scale + ctx.measureText(text).width > bbox.left + bbox.width;
          const from = x + (left ? -7 * scale - ctx.measureText(text).width : 3 * scale);
          ctx.fillStyle = colour('card');
          ctx.fillRect(from, bbox.top + 14 * row * scale, ctx.measureText(text).width + 4 * scale, 15 * scale);
          ctx.textAlign = left ? 'right' : 'left';
          ctx.fillStyle = colour('ink');
          ctx.fillText(text, x + (left ? -5 : 5) * scale, bbox.top + (11 + 14 * row) * scale);
        });
        ctx.restore();
      },
    },
  };
}
