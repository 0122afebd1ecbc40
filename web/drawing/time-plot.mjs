// A plot of latencies over the time of day, updated in place.
import { colour, element, latency } from './format.mjs';

/** @returns draws series of milliseconds over seconds since 1970, with bounds as dashed lines */
export function timePlot(place, title, id) {
  const target = element('div', { className: 'plot', id: `plot-${id}` });
  place.append(element('div', { className: 'card' }, element('h2', {}, title), target));
  let plot;
  let drawn = '';
  return (seconds, series, bounds) => {
    const { clientWidth: width } = target;
    const dark = colour('card');
    const key = [width, dark, ...series.map(({ label }) => label), ...bounds].join();
    const data = [seconds, ...series.map(({ values }) => values)];
    if (key === drawn) return plot.setData(data);
    plot?.destroy();
    target.replaceChildren();
    drawn = key;
    plot = new window.uPlot(optionsOf(width, series, bounds), data, target);
  };
}

const timeOfDay = (seconds) => new Date(1000 * seconds).toLocaleTimeString('en-GB');

function optionsOf(width, series, bounds) {
  const axis = {
    stroke: colour('soft'),
    font: '12px system-ui, sans-serif',
    grid: { stroke: colour('grid'), width: 1 },
    ticks: { show: false },
  };
  return {
    ...{ width, height: 220 },
    scales: { ms: { range: (_, __, most) => [0, Math.max(most ?? 0, ...bounds) * 1.1 || 1] } },
    axes: [
      { ...axis, size: 30, space: 90, values: (_, splits) => splits.map(timeOfDay) },
      { ...axis, scale: 'ms', size: 62, values: (_, splits) => splits.map((ms) => (ms === 0 ? '0' : latency(ms))) },
    ],
    cursor: { y: false, points: { size: 6 } },
    hooks: { draw: [(plot) => drawBounds(plot, bounds)] },
    series: [
      { label: 'at', value: (_, seconds) => (seconds === null ? '–' : timeOfDay(seconds)) },
      ...series.map(({ label, hue }) => ({
        ...{ label, scale: 'ms', stroke: colour(hue), width: 1.8, spanGaps: true, points: { show: false } },
        value: (_, ms) => (ms === null || ms === undefined ? '–' : latency(ms)),
      })),
    ],
  };
}

function drawBounds({ ctx, bbox, valToPos }, bounds) {
  ctx.save();
  ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.strokeStyle = colour('red');
  ctx.lineWidth = devicePixelRatio;
  for (const bound of bounds) {
    const y = valToPos(bound, 'ms', true);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}
