// Draws the report of a run from the data in the page: distributions, load over time, and every instance.

const report = JSON.parse(document.getElementById('data').textContent);
const { uPlot } = window;
const { load, counts } = report;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const wash = (name, share) => `color-mix(in srgb, ${colour(name)} ${share}%, transparent)`;
const round = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString('en');
const whole = (value) => Math.round(value).toLocaleString('en');
const percent = (share) => `${round(100 * share)} %`;

function compact(value) {
  for (const [unit, name] of [
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ])
    if (Math.abs(value) >= unit) return `${round(value / unit)}${name}`;
  return round(value);
}

function latency(ms) {
  if (ms < 1) return `${round(ms * 1000)} µs`;
  return ms < 1000 ? `${round(ms)} ms` : `${round(ms / 1000)} s`;
}

function clock(seconds) {
  if (seconds < 60) return `${round(seconds)} s`;
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.round(seconds % 60)];
  if (hours === 0) return rest === 0 ? `${minutes} min` : `${minutes}:${String(rest).padStart(2, '0')}`;
  return minutes === 0 ? `${hours} h` : `${hours}:${String(minutes).padStart(2, '0')} h`;
}

function duration(seconds) {
  if (seconds < 60) return `${round(seconds)} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours > 0 ? `${hours} h ${minutes} min` : `${round(seconds / 60)} min`;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function card(place, title, note) {
  const plot = element('div', { className: 'plot' });
  place.append(element('div', { className: 'card' }, element('h2', {}, title), element('p', {}, note), plot));
  return plot;
}

/** Draws each plot: first when all have their place, anew when the width or the theme changes. */
const plots = [];

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

/** Ones, twos and fives of every power of ten between two numbers; ones alone where those are many. */
function logSplits(min, max) {
  const digits = max / min > 2000 ? [1] : max / min > 20 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  const splits = [];
  for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++) {
    for (const digit of digits) {
      const split = Number((digit * 10 ** power).toPrecision(3));
      if (split >= min && split <= max) splits.push(split);
    }
  }
  return splits;
}

/** Lines over simulated time; their cursors move together. */
function overTime(place, title, note, series, { format = compact, most } = {}) {
  draw(card(place, title, note), () => ({
    data: [load.seconds, ...series.map(({ values }) => values)],
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

/** A distribution over a logarithmic axis: share of requests in each bin, and of those up to it. */
function distribution(place, title, note, { bins, count, p50, p90, p99 }, hue) {
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
        splits: (_, __, min, max) => logSplits(min, max),
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

/** Dashed lines with their names, each in a row of its own where they would touch. */
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

/** Per second between one sample and the next; the first has none before it. */
function rate(name) {
  const [values, at] = [load.totals[name], load.seconds];
  return values.map((value, i) => {
    const seconds = i === 0 ? at[1] - at[0] : at[i] - at[i - 1];
    const grown = i === 0 ? (values[1] ?? 0) - value : value - values[i - 1];
    return seconds > 0 ? grown / seconds : 0;
  });
}

const over = (rows, combine) => load.seconds.map((_, i) => combine(rows.map((row) => row[i])));
const sum = (values) => values.reduce((all, value) => all + value, 0);
const mean = (values) => sum(values) / Math.max(1, values.length);
const least = (values) => values.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);

function tiles() {
  const seconds = counts.simulatedSeconds;
  const figures = [
    [whole(counts.completed), `of ${whole(counts.requests)} requests completed`],
    [whole(counts.refused), 'refused', counts.refused > 0],
    [latency(report.ttftMs.p50), `TTFT, median; ${latency(report.ttftMs.p99)} at p99`],
    [latency(report.tbtMs.p50), `TBT, median; ${latency(report.tbtMs.p99)} at p99`],
    [percent(counts.hitRatioTokens), 'of prompt tokens from cache'],
    [compact(counts.outputTokens / seconds), 'output tokens a second'],
    [duration(seconds), `simulated; ${compact(counts.steps)} steps`],
  ];
  const place = document.getElementById('tiles');
  for (const [figure, name, bad] of figures) {
    const tile = element(
      'div',
      { className: bad ? 'tile bad' : 'tile' },
      element('b', {}, figure),
      element('span', {}, name),
    );
    place.append(tile);
  }
}

function settings() {
  const rows = [...report.settings, ['state hash', counts.stateHash]];
  document
    .getElementById('settings')
    .append(...rows.map(([name, value]) => element('tr', {}, element('td', {}, name), element('td', {}, value))));
}

/** A row for each instance, time from left to right. */
function instances() {
  const choices = [
    ['running', 'Running', (value) => `${whole(value)} requests running`, most(load.running.map(most))],
    ['waiting', 'Waiting', (value) => `${whole(value)} requests waiting`, most(load.waiting.map(most))],
    ['kvUsed', 'KV used', (value) => `${percent(value)} of KV used`, 1],
  ];
  let chosen = choices[0];
  const heat = element('canvas', { id: 'heat' });
  const said = element('div', { id: 'said' });
  const top = element('span', {});
  const buttons = choices.map((choice) => {
    const choose = () => {
      chosen = choice;
      redraw();
    };
    return element('button', { type: 'button', textContent: choice[1], onclick: choose });
  });
  const scale = element('span', { className: 'scale' }, '0', element('i'), top);
  const choice = element('span', { className: 'choice' }, ...buttons);
  const head = element('div', { className: 'head' }, element('h2', {}, 'Every instance'), scale, choice);
  document.getElementById('instances').append(head, heat, said);
  let place;
  const redraw = () => {
    const [field, , , highest] = chosen;
    buttons.forEach((button, i) => {
      button.setAttribute('aria-pressed', String(choices[i] === chosen));
    });
    top.textContent = field === 'kvUsed' ? '100 %' : whole(highest);
    place = drawHeat(heat, load[field], highest);
  };
  heat.onmousemove = ({ offsetX, offsetY }) => {
    const cell = place(offsetX, offsetY);
    const [field, , say] = chosen;
    said.textContent =
      cell && `Instance ${cell.row} at ${clock(load.seconds[cell.column])}: ${say(load[field][cell.row][cell.column])}`;
  };
  heat.onmouseleave = () => {
    said.textContent = '';
  };
  plots.push(redraw);
}

/** Draws rows of values from 0 to `highest`; returns what tells the cell under a point. */
function drawHeat(canvas, rows, highest) {
  const [left, bottom, ratio] = [44, 24, devicePixelRatio];
  const rowHeight = Math.max(1, Math.min(22, Math.floor(560 / rows.length)));
  const [width, height] = [canvas.clientWidth, rowHeight * rows.length];
  canvas.style.height = `${height + bottom}px`;
  canvas.width = width * ratio;
  canvas.height = (height + bottom) * ratio;
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  const ramp = [0, 1, 2, 3].map((i) => rgb(colour(`heat-${i}`)));
  const seconds = load.seconds;
  const end = seconds.at(-1) || 1;
  const x = (at) => left + ((width - left) * at) / end;
  const gap = rowHeight > 6 ? 1 : 0;
  rows.forEach((row, r) => {
    for (let i = 0; i + 1 < seconds.length; i++) {
      context.fillStyle = blend(ramp, highest > 0 ? row[i] / highest : 0);
      const from = x(seconds[i]);
      context.fillRect(from, r * rowHeight, x(seconds[i + 1]) - from + 0.6, rowHeight - gap);
    }
  });
  label(context, { rows: rows.length, rowHeight, left, height, width, end, x });
  return (atX, atY) => {
    const row = Math.floor(atY / rowHeight);
    const at = ((atX - left) / (width - left)) * end;
    if (row < 0 || row >= rows.length || at < 0) return undefined;
    const after = seconds.findIndex((second) => second > at);
    return { row, column: after < 0 ? seconds.length - 1 : Math.max(0, after - 1) };
  };
}

function label(context, { rows, rowHeight, left, height, width, end, x }) {
  context.fillStyle = colour('soft');
  context.font = '12px system-ui, sans-serif';
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * rowHeight >= 14) ?? 1000;
  for (let r = 0; r < rows; r += every) context.fillText(String(r), left - 8, (r + 0.5) * rowHeight);
  context.textBaseline = 'top';
  const step = [...steps(1), ...steps(60), 3600, 7200, 14_400, 43_200].find((n) => end / n <= width / 110) ?? end;
  for (let at = 0; at <= end; at += step) {
    context.textAlign = at === 0 ? 'left' : x(at) > width - 30 ? 'right' : 'center';
    context.fillText(clock(at), x(at), height + 8);
  }
}

function rgb(hex) {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

function blend(ramp, share) {
  const place = Math.min(1, Math.max(0, share)) * (ramp.length - 1);
  const below = Math.min(ramp.length - 2, Math.floor(place));
  const mixed = ramp[below].map((from, i) => Math.round(from + (ramp[below + 1][i] - from) * (place - below)));
  return `rgb(${mixed.join(' ')})`;
}

function plotsOverTime() {
  const place = document.getElementById('load');
  overTime(place, 'Requests', 'running and waiting, over all instances', [
    { label: 'running', hue: 'blue', values: over(load.running, sum) },
    { label: 'waiting', hue: 'amber', values: over(load.waiting, sum) },
  ]);
  overTime(place, 'Requests ended', 'a second', [
    { label: 'completed', hue: 'green', values: rate('completed') },
    { label: 'refused', hue: 'red', values: rate('refused') },
  ]);
  overTime(place, 'Prompt tokens', 'a second: computed, and taken from cache when a request starts', [
    { label: 'computed', hue: 'blue', values: rate('computedTokens') },
    { label: 'from cache', hue: 'green', values: rate('cachedTokens') },
  ]);
  overTime(place, 'Output tokens', 'a second', [{ label: 'decoded', hue: 'violet', values: rate('outputTokens') }]);
  const line = { fill: 0, width: 1 };
  const used = [
    { label: 'mean', hue: 'blue', values: over(load.kvUsed, mean) },
    { label: 'least', hue: 'soft', values: over(load.kvUsed, least), ...line },
    { label: 'most', hue: 'amber', values: over(load.kvUsed, most), ...line },
  ];
  overTime(place, 'KV memory in use', 'share of an instance that requests hold; the rest is free or cached', used, {
    format: percent,
    most: 1,
  });
  const spread = [
    { label: 'mean', hue: 'blue', values: over(load.running, mean) },
    { label: 'least', hue: 'soft', values: over(load.running, least), ...line },
    { label: 'most', hue: 'amber', values: over(load.running, most), ...line },
  ];
  overTime(place, 'Balance', 'requests running on one instance', spread);
}

document.getElementById('summary').textContent = report.settings
  .slice(0, 4)
  .map(([name, value]) => `${name} ${value}`)
  .join(' · ');
tiles();
settings();
const latencies = document.getElementById('latencies');
distribution(latencies, 'Time to first token', 'requests by TTFT', report.ttftMs, 'blue');
distribution(latencies, 'Time between tokens', "mean of each request's longest 10 % of gaps", report.tbtMs, 'violet');
plotsOverTime();
instances();

const redrawAll = () => {
  for (const redraw of plots) redraw();
};
redrawAll();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);
let width = document.body.clientWidth;
addEventListener('resize', () => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  redrawAll();
});
document.documentElement.dataset.drawn = String(plots.length);
