// Draws the report of a run from the data in the page: distributions, load over time, and every instance.
import { compact, duration, element, latency, least, mean, most, percent, sum, whole } from './format.mjs';
import { instances } from './heat-map.mjs';
import { distribution, drawAll, overTime } from './plots.mjs';

const report = JSON.parse(document.getElementById('data').textContent);
const { load, counts } = report;

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

function tiles() {
  const seconds = counts.simulatedSeconds;
  const refused = sum(Object.values(counts.refused));
  const named = Object.entries(counts.refused).map(([reason, n]) => `${whole(n)} ${reason}`);
  const reasons = named.length > 0 ? `: ${named.join(', ')}` : '';
  const figures = [
    [whole(counts.completed), `of ${whole(counts.requests)} requests completed`],
    [whole(refused), `refused${reasons}`, refused > 0],
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

function plotsOverTime() {
  const place = document.getElementById('load');
  const plot = (title, note, series, options) => overTime(place, load.seconds, { title, note, series, ...options });
  plot('Requests', 'running and waiting, over all instances', [
    { label: 'running', hue: 'blue', values: over(load.running, sum) },
    { label: 'waiting', hue: 'amber', values: over(load.waiting, sum) },
  ]);
  plot('Requests ended', 'a second', [
    { label: 'completed', hue: 'green', values: rate('completed') },
    { label: 'refused', hue: 'red', values: rate('refused') },
  ]);
  plot('Prompt tokens', 'a second: computed, and taken from cache when a request starts', [
    { label: 'computed', hue: 'blue', values: rate('computedTokens') },
    { label: 'from cache', hue: 'green', values: rate('cachedTokens') },
  ]);
  plot('Output tokens', 'a second', [{ label: 'decoded', hue: 'violet', values: rate('outputTokens') }]);
  const line = { fill: 0, width: 1 };
  const used = [
    { label: 'mean', hue: 'blue', values: over(load.kvUsed, mean) },
    { label: 'least', hue: 'soft', values: over(load.kvUsed, least), ...line },
    { label: 'most', hue: 'amber', values: over(load.kvUsed, most), ...line },
  ];
  plot('KV memory in use', 'share of an instance that requests hold; the rest is free or cached', used, {
    format: percent,
    most: 1,
  });
  const spread = [
    { label: 'mean', hue: 'blue', values: over(load.running, mean) },
    { label: 'least', hue: 'soft', values: over(load.running, least), ...line },
    { label: 'most', hue: 'amber', values: over(load.running, most), ...line },
  ];
  plot('Balance', 'requests running on one instance', spread);
}

document.getElementById('summary').textContent = report.settings
  .slice(0, 5)
  .map(([name, value]) => `${name} ${value}`)
  .join(' · ');
tiles();
settings();
const latencies = document.getElementById('latencies');
distribution(latencies, 'Time to first token', 'requests by TTFT', report.ttftMs, 'blue');
distribution(latencies, 'Time between tokens', "mean of each request's longest 10 % of gaps", report.tbtMs, 'violet');
plotsOverTime();
instances(document.getElementById('instances'), load, report.instances);

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
let width = document.body.clientWidth;
addEventListener('resize', () => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  drawAll();
});
document.documentElement.dataset.drawn = String(drawAll());
