// Draws the report of a run from the data in the page: distributions, load over time, and every instance.
import { debts, links } from '../drawing/arrows.mjs';
import { compact, duration, element, latency, least, mean, most, percent, sum, whole } from '../drawing/format.mjs';
import { instances } from '../drawing/heat-map.mjs';
import { distribution, drawAll, overTime } from '../drawing/plots.mjs';

const report = JSON.parse(document.getElementById('data').textContent);
const { load, counts } = report;
const setting = new Map(report.settings);

/** Rates between samples; the first sample has none. */
function rate(values) {
  const at = load.seconds;
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
    [compact(counts.outputTokens / seconds), 'output tokens per second'],
    [duration(seconds), `simulated; ${compact(counts.steps)} steps`],
  ];
  if (['ttft-slo', 'tbt-slo', 'slo-classes'].some((name) => setting.has(name))) {
    const share = counts.withinSlo / Math.max(1, counts.completed);
    figures.splice(2, 0, [percent(share), 'of completed requests within SLO', share < 0.99]);
  }
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

/** The sources of prompt blocks as parts of one bar. */
function blocks() {
  const { missReasons } = counts;
  const parts = [
    ['from cache', counts.hitBlocks, 'green'],
    ['never seen', missReasons.neverSeen, 'blue'],
    ['evicted', missReasons.evicted, 'amber'],
    ['on another instance', missReasons.elsewhere, 'violet'],
    ['partial', missReasons.partial, 'soft'],
  ];
  const all = sum(parts.map(([, n]) => n));
  const place = document.getElementById('blocks');
  // Placements that ignore caches count no blocks.
  if (all === 0) return place.remove();
  const bar = element('div', { className: 'bar' });
  const legend = element('div', { className: 'legend' });
  for (const [name, n, hue] of parts) {
    const part = element('i', { title: `${name}: ${whole(n)}` });
    part.style.cssText = `flex: ${n}; background: var(--${hue})`;
    if (n > 0) bar.append(part);
    const mark = element('i');
    mark.style.background = `var(--${hue})`;
    legend.append(element('span', {}, mark, `${name} `, element('b', {}, percent(n / all))));
  }
  place.append(
    element('h2', {}, 'Blocks of prompts'),
    element('p', {}, `${whole(all)} blocks: from cache, or computed for these reasons`),
    bar,
    legend,
  );
}

/** Names of what is sent, as in the summary of a run. */
const purposes = {
  handoff: 'hand-off',
  prefix: 'remote prefixes',
  borrow: 'lending',
  settle: 'settlements',
  activations: 'activations',
};

/** By purpose, without purposes that moved nothing. */
function network(plot) {
  const hues = { handoff: 'blue', prefix: 'green', borrow: 'amber', settle: 'violet', activations: 'red' };
  const moved = Object.entries(hues).filter(([kind]) => load.bytesMoved[kind].at(-1) > 0);
  if (moved.length === 0) return;
  const series = moved.map(([kind, hue]) => ({ label: purposes[kind], hue, values: rate(load.bytesMoved[kind]) }));
  plot('Network', 'bytes per second between instances, by purpose', series);
  const line = { fill: 0, width: 1 };
  const nics = [
    { label: 'sends, mean', hue: 'blue', values: over(load.nicSent, mean) },
    { label: 'sends, most', hue: 'soft', values: over(load.nicSent, most), ...line },
    { label: 'receives, mean', hue: 'green', values: over(load.nicReceived, mean), ...line },
    { label: 'receives, most', hue: 'amber', values: over(load.nicReceived, most), ...line },
  ];
  plot('NICs', 'share of the capacity in one direction', nics, { format: percent });
}

/** Blocks lent, if instances lend. */
function lending(plot) {
  if (load.debts.length === 0) return;
  const lent = load.debts.map((edges) => sum(edges.map(([, , blocks]) => blocks)));
  plot('Lent memory', 'KV blocks that instances have borrowed from one another', [
    { label: 'lent', hue: 'violet', values: lent },
  ]);
}

/** Fill of each tier, if there are any below device memory. */
function tiers(plot) {
  const hues = { device: 'blue', host: 'green', ssd: 'amber' };
  const names = { device: 'device', host: 'host memory', ssd: 'SSD' };
  const present = Object.entries(hues).filter(([tier]) => load.tiers[tier].length > 0);
  if (present.length < 2) return;
  const series = present.map(([tier, hue]) => ({ label: names[tier], hue, values: load.tiers[tier], fill: 0 }));
  plot('Tiers', 'share of each tier in use or cached, over all instances', series, {
    format: percent,
    most: 1,
  });
}

/** Predictions over the SLO, if requests have one; admission refuses above 100 %. */
function pools(plot) {
  if (load.poolLoads.length === 0) return;
  const series = [
    { label: 'prefill', hue: 'blue', values: load.poolLoads.map(({ prefill }) => prefill) },
    { label: 'decode', hue: 'violet', values: load.poolLoads.map(({ decode }) => decode) },
  ];
  plot('Load of the pools', 'predicted TTFT and TBT over their SLOs', series, { format: percent });
}

function plotsOverTime() {
  const place = document.getElementById('load');
  const plot = (title, note, series, options) => overTime(place, load.seconds, { title, note, series, ...options });
  plot('Requests', 'running and waiting, over all instances', [
    { label: 'running', hue: 'blue', values: over(load.running, sum) },
    { label: 'waiting', hue: 'amber', values: over(load.waiting, sum) },
  ]);
  plot('Requests ended', 'a second', [
    { label: 'completed', hue: 'green', values: rate(load.totals.completed) },
    { label: 'refused', hue: 'red', values: rate(load.totals.refused) },
  ]);
  plot('Prompt tokens', 'a second: computed, and taken from cache when a request starts', [
    { label: 'computed', hue: 'blue', values: rate(load.totals.computedTokens) },
    { label: 'from cache', hue: 'green', values: rate(load.totals.cachedTokens) },
  ]);
  plot('Output tokens', 'a second', [{ label: 'decoded', hue: 'violet', values: rate(load.totals.outputTokens) }]);
  const line = { fill: 0, width: 1 };
  const used = [
    { label: 'mean', hue: 'blue', values: over(load.kvUsed, mean) },
    { label: 'least', hue: 'soft', values: over(load.kvUsed, least), ...line },
    { label: 'most', hue: 'amber', values: over(load.kvUsed, most), ...line },
  ];
  plot('KV in use', 'share of an instance held by requests; the rest is free or cached', used, {
    format: percent,
    most: 1,
  });
  const spread = [
    { label: 'mean', hue: 'blue', values: over(load.running, mean) },
    { label: 'least', hue: 'soft', values: over(load.running, least), ...line },
    { label: 'most', hue: 'amber', values: over(load.running, most), ...line },
  ];
  plot('Balance', 'requests running on one instance', spread);
  tiers(plot);
  network(plot);
  lending(plot);
  pools(plot);
  links(place, load, report.instances);
  debts(place, load, report.instances);
}

/** '5 prefill, 3 decode': names end with a number. */
function roles() {
  const found = new Map();
  for (const name of report.instances) {
    const role = name.replace(/ \d+$/, '');
    found.set(role, (found.get(role) ?? 0) + 1);
  }
  return [...found].map(([role, n]) => `${whole(n)} ${role}`).join(', ');
}

document.getElementById('summary').textContent = [
  setting.get('trace') ?? setting.get('workload'),
  `${setting.get('model')} on ${roles()} ${setting.get('hardware')}`,
  `arrivals ${setting.get('speed')} times as fast`,
]
  .filter((_, i) => i < 2 || setting.get('speed') !== '1')
  .join(' · ');
tiles();
settings();
blocks();
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
