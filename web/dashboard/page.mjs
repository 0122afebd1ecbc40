// The dashboard: tabs with views over the live state of a gateway.
import { clock, compact, element, latency, percent, whole } from '../drawing/format.mjs';
import { Chat } from './chat.mjs';
import { Flows } from './flows.mjs';
import { Latency } from './latency.mjs';
import { MemoryMap } from './memory-map.mjs';
import { perfettoTrace } from './perfetto.mjs';
import { Prefixes } from './prefixes.mjs';
import { Requests } from './requests.mjs';
import { authorised, LiveSource, storeKey } from './source.mjs';
import { State, sumOf } from './state.mjs';

const at = (id) => document.getElementById(id);
const state = new State();
const views = [MemoryMap, Requests, Latency, Flows, Prefixes, Chat].map((View) => {
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
    delete document.documentElement.dataset.drawn;
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
at('save').onclick = () => save('kvasir-recording.json', state.recording);
at('trace').onclick = () => save('kvasir-trace.json', perfettoTrace(state));
at('open').onclick = () => at('file').click();
at('file').onchange = () => void openFile(at('file').files[0]);
addEventListener('dragover', (event) => event.preventDefault());
addEventListener('drop', (event) => {
  event.preventDefault();
  void openFile(event.dataTransfer.files[0]);
});

function save(name, content) {
  const link = element('a', { download: name });
  link.href = URL.createObjectURL(new Blob([JSON.stringify(content)], { type: 'application/json' }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function openFile(file) {
  if (file === undefined) return;
  try {
    play(JSON.parse(await file.text()), file.name);
  } catch (error) {
    setStatus('lost', `Cannot open ${file.name}: ${error.message}`);
  }
}

/** Shows a recording from its last frame back, at the time of the slider. */
function play(recording, name) {
  const { object, frames, requests } = recording;
  if (object !== 'kvasir.dashboard.recording' || frames.length === 0)
    throw new Error('it is not a recording of this page');
  source.stop();
  at('pause').hidden = true;
  at('access').hidden = true;
  at('player').hidden = false;
  at('slider').max = frames.length - 1;
  at('slider').oninput = () => {
    const i = Number(at('slider').value);
    state.seek(frames, i, requests);
    at('player-at').textContent =
      `${clock((frames[i].now_ms - frames[0].now_ms) / 1000)} of ${clock((frames.at(-1).now_ms - frames[0].now_ms) / 1000)}`;
    draw();
  };
  at('slider').value = frames.length - 1;
  at('slider').oninput();
  setStatus('', `${frames[0].models.join(', ')}, ${name}`);
}

/** A recording that the server names, or else the live state. */
async function begin() {
  const run = new URLSearchParams(location.search).get('run');
  if (run === null) return source.start();
  const response = await authorised(`/dashboard/runs/${encodeURIComponent(run)}`);
  if (!response.ok) return setStatus('lost', `Cannot open ${run}: the server answered ${response.status}`);
  play(await response.json(), run);
}

addEventListener('resize', draw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
draw();
void begin();
