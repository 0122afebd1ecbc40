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

/** States the number of labels of the axis that has the fewest, for tests. */
const labelCount = {
  hooks: {
    draw: ({ root, axes }) => {
      root.dataset.labels = String(Math.min(...axes.map(({ _values }) => _values.length)));
    },
  },
};

function draw(target, build) {
  let plot;
  plots.push(() => {
    plot?.destroy();
    const { data, plugins = [], ...options } = build();
    const shared = { width: target.clientWidth, height: 240, plugins: [...plugins, labelCount] };
    plot = new uPlot({ ...shared, ...options }, data, target);
  });
}

const axis = (more) => ({
  stroke: colour('soft'),
  font: '12px system-ui, sans-serif',
  grid: { stroke: colour('grid'), width: 1 },
  ticks: { show: false },
  ...more,
});

/** Space of a label, in pixels. */
const labelWidth = 64;
const times = (seconds) => [1, 2, 5, 10, 20, 30].map((n) => n * seconds);
const timeSteps = [0.001, 0.01, 0.1, ...times(1), ...times(60), ...[1, 2, 4, 6, 12, 24, 48, 120].map((n) => n * 3600)];

/** Multiples of the smallest step whose labels fit, but at least three of them. */
function multiples(min, max, width, steps) {
  const count = (step) => Math.floor(max / step) - Math.ceil(min / step) + 1;
  const enough = steps.filter((step) => count(step) >= 3);
  const step = enough.find((each) => count(each) * labelWidth <= width) ?? enough.at(-1) ?? steps[0];
  const first = Math.ceil(min / step);
  return Array.from({ length: Math.max(0, count(step)) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Times from 0 to `seconds` for labels on an axis. */
export function timeSplits(seconds, width) {
  return multiples(0, seconds, width, timeSteps);
}

const timeAxis = () =>
  axis({
    splits: ({ bbox }, _, __, max) => timeSplits(max, bbox.width / devicePixelRatio),
    values: (_, splits) => splits.map(clock),
    size: 30,
  });

/** Round numbers between two numbers: some per power of ten, as labels fit, or equally far apart if these are fewer than three. */
function logSplits(min, max, width) {
  const powers = Array.from(
    { length: Math.ceil(Math.log10(max / min)) + 2 },
    (_, i) => i + Math.floor(Math.log10(min)),
  );
  const choices = [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]].map((digits) =>
    powers
      .flatMap((power) => digits.map((digit) => Number((digit * 10 ** power).toPrecision(3))))
      .filter((split) => split >= min && split <= max),
  );
  const fitting = choices.find((splits) => splits.length * labelWidth <= width && splits.length >= 3);
  if (fitting !== undefined) return fitting;
  const power = Math.floor(Math.log10(max - min));
  const steps = [-2, -1, 0, 1].flatMap((i) => [1, 2, 5].map((digit) => digit * 10 ** (power + i)));
  return multiples(min, max, width, steps);
}

/** Times with as many digits as distinguish them. */
function latencyLabels(_, splits) {
  const [first, second] = splits;
  const digits = second === undefined ? 3 : Math.ceil(Math.log10(splits.at(-1) / (second - first))) + 1;
  return splits.map((ms) => latency(ms, Math.max(3, digits)));
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
    height: 240 + labelRow * 3,
    padding: [labelRow * 3 + 4, null, null, null],
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
        values: latencyLabels,
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

/** Height of a row of names above a plot. */
const labelRow = 14;

/** Dashed lines with names above the plot, each on a row of its own. */
function percentileMarks(marks) {
  return {
    hooks: {
      draw: ({ ctx, bbox, valToPos }) => {
        const scale = devicePixelRatio;
        ctx.save();
        ctx.font = `${11 * scale}px system-ui, sans-serif`;
        ctx.setLineDash([4 * scale, 3 * scale]);
        ctx.lineWidth = scale;
        const shown = Object.entries(marks).map(([name, ms], row) => {
          return {
            text: `${name} ${latency(ms)}`,
            x: valToPos(ms, 'x', true),
            top: bbox.top - labelRow * (3 - row) * scale,
          };
        });
        const inside = shown.filter(({ x }) => x >= bbox.left && x <= bbox.left + bbox.width);
        ctx.strokeStyle = colour('soft');
        for (const { x, top } of inside) {
          ctx.beginPath();
          ctx.moveTo(x, top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
        ctx.textAlign = 'left';
        for (const { text, x, top } of inside) {
          const width = ctx.measureText(text).width;
          const isLeft = x + 5 * scale + width > bbox.left + bbox.width;
          const from = isLeft ? x - 5 * scale - width : x + 5 * scale;
          // A name hides the lines of other names.
          ctx.fillStyle = colour('card');
          ctx.fillRect(from - 2 * scale, top, width + 4 * scale, labelRow * scale);
          ctx.fillStyle = colour('ink');
          ctx.fillText(text, from, top + 10 * scale);
        }
        ctx.restore();
      },
    },
  };
}
