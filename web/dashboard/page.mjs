// The dashboard: tabs with views over the live state of a gateway.
import { compact, element, latency, percent, whole } from '../drawing/format.mjs';
import { Latency } from './latency.mjs';
import { MemoryMap } from './memory-map.mjs';
import { Requests } from './requests.mjs';
import { LiveSource, storeKey } from './source.mjs';
import { State, sumOf } from './state.mjs';

const at = (id) => document.getElementById(id);
const state = new State();
const views = [MemoryMap, Requests, Latency].map((View) => {
  const section = element('section', { hidden: true });
  at('views').append(section);
  return { view: new View(section), section };
});
let shown = views[0];

for (const each of views) {
  const onclick = () => {
    shown = each;
    draw();
  };
  const button = element('button', { type: 'button', role: 'tab', textContent: each.view.title, onclick });
  button.setAttribute('role', 'tab');
  each.button = button;
  at('tabs').append(button);
}

/** Draws the figures and the selected view. */
function draw() {
  for (const each of views) {
    each.section.hidden = each !== shown;
    each.button.setAttribute('aria-pressed', String(each === shown));
    each.button.setAttribute('aria-selected', String(each === shown));
  }
  if (state.frame === undefined) return;
  const started = performance.now();
  drawTiles();
  shown.view.draw(state);
  document.documentElement.dataset.drawn = String(Math.round(performance.now() - started));
}

function drawTiles() {
  const { frame, instances } = state;
  const serving = instances.filter(({ ready }) => ready === 1).length;
  const [pages, free, cached] = ['pages', 'free', 'cached'].map((column) => sumOf(frame, column));
  const waiting = sumOf(frame, 'waiting');
  const computed = state.rate('computed_tokens');
  const hits = state.rate('cached_tokens');
  const refused = frame.refusals.reduce((sum, [, , count]) => sum + count, 0);
  const tiles = [
    [`${whole(serving)} of ${whole(instances.length)}`, 'instances serve', serving < instances.length],
    [whole(sumOf(frame, 'running')), `requests running, ${whole(waiting)} waiting`],
    [percent(pages > 0 ? (pages - free - cached) / pages : 0), 'of device pages in use'],
    [compact(state.rate('output_tokens')), 'output tokens a second'],
    [compact(computed), 'prompt tokens computed a second'],
    [computed + hits > 0 ? percent(hits / (computed + hits)) : '–', 'of prompt tokens from cache'],
    [slowest(frame), 'TTFT at p99'],
    [whole(refused), 'requests refused', refused > 0],
  ];
  at('tiles').replaceChildren(
    ...tiles.map(([figure, name, bad]) =>
      element('div', { className: bad ? 'tile bad' : 'tile' }, element('b', {}, figure), element('span', {}, name)),
    ),
  );
}

function slowest({ classes }) {
  const all = classes.flatMap(({ ttft }) => (ttft === null ? [] : [ttft.p99]));
  return all.length === 0 ? '–' : latency(Math.max(...all));
}

const source = new LiveSource({
  frame: (frame, size) => {
    state.add(frame, size);
    at('access').hidden = true;
    setStatus(source.paused ? '' : 'live', `${frame.models.join(', ')}, ${source.paused ? 'paused' : 'live'}`);
    draw();
  },
  denied: (message) => {
    setStatus('lost', 'no access');
    at('access').hidden = false;
    at('access-why').textContent = message;
    at('key').focus();
  },
  lost: (message) => setStatus('lost', `no connection: ${message}`),
});

function setStatus(kind, text) {
  at('status').className = `status ${kind}`;
  at('about').textContent = text;
}

at('access').onsubmit = (event) => {
  event.preventDefault();
  storeKey(at('key').value);
  at('key').value = '';
  source.start();
};
at('pause').onclick = () => {
  source.paused = !source.paused;
  at('pause').textContent = source.paused ? 'Continue' : 'Pause';
};
addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
draw();
source.start();
