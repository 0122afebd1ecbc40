// Requests as time lines: a row for each, and the parts, reasons and predictions of the selected one.
import { contextOf, fitted, mixed, palette, tickStep } from '../drawing/canvas.mjs';
import { element, latency, whole } from '../drawing/format.mjs';

const [rowsMax, rowHeight, axisHeight] = [40, 20, 24];
const kinds = [
  ['queue', 'Queue', 'soft'],
  ['fetch', 'Fetch of a prefix', 'violet'],
  ['prefill', 'Prefill', 'blue'],
  ['hand-off', 'Hand-off', 'amber'],
  ['decode', 'Decode', 'green'],
];

export function partHues() {
  const hues = palette();
  const parts = Object.fromEntries(kinds.map(([kind, , hue]) => [kind, hues[hue]]));
  return { ...hues, parts: { ...parts, queue: mixed(hues.soft, hues.card, 0.45) } };
}

/** Without the kind of the endpoint, and without the number of the only choice. */
const shortId = ({ id }) => id.replace(/^[a-z]+[-_]/, '').replace(/-0$/, '');

/** The end of a part that is running is the time of the frame. */
const endOf = (row, [, from, to], now) =>
  Math.max(from, Math.min(to ?? now - row.submitted_ms, now - row.submitted_ms));
const lengthOf = (row, now) => row.parts.reduce((most, part) => Math.max(most, endOf(row, part, now)), 0);

export class Requests {
  title = 'Requests';
  #canvas = element('canvas', { className: 'map', id: 'requests' });
  #caption = element('div', { className: 'caption' });
  #detail = element('div', { className: 'card', id: 'request' });
  #note = element('p');
  #choice = element('span', { className: 'choice' });
  #byClock = false;
  #rows = [];
  #state;
  chosen;

  constructor(place) {
    const legend = element('div', { className: 'legend' });
    for (const [, name, hue] of kinds) {
      const square = element('i');
      square.style.background = `var(--${hue})`;
      legend.append(element('span', {}, square, name));
    }
    const head = element('div', { className: 'head' }, element('h2', {}, 'Time lines of requests'), this.#choice);
    place.append(
      element('div', { className: 'card' }, head, this.#note, this.#canvas, this.#caption, legend),
      this.#detail,
    );
    for (const [name, byClock] of [
      ['since arrival', false],
      ['by the clock', true],
    ]) {
      const onclick = () => {
        this.#byClock = byClock;
        this.draw(this.#state);
      };
      this.#choice.append(element('button', { type: 'button', textContent: name, onclick }));
    }
    this.#canvas.onclick = ({ offsetY }) => {
      this.chosen = this.#rows[Math.floor(offsetY / rowHeight)]?.id ?? this.chosen;
      this.draw(this.#state);
    };
    this.#canvas.onmousemove = ({ offsetY }) => {
      const row = this.#rows[Math.floor(offsetY / rowHeight)];
      this.#caption.textContent =
        row === undefined ? '' : `${row.id}: ${row.placements.at(-1) ?? row.end ?? row.state}`;
    };
  }

  draw(state) {
    this.#state = state;
    for (const [i, button] of [...this.#choice.children].entries())
      button.setAttribute('aria-pressed', String(this.#byClock === (i === 1)));
    this.#rows = state.requests.slice(0, rowsMax);
    const { now } = state;
    const running = state.requests.filter(({ ended_ms }) => ended_ms === null || ended_ms > now).length;
    this.#note.textContent = `the latest ${whole(this.#rows.length)} of ${whole(state.requests.length)}; ${whole(running)} not ended; a click selects one`;
    const chosen = state.requests.find(({ id }) => id === this.chosen) ?? this.#rows[0];
    this.#drawRows(state, chosen);
    showRequest(this.#detail, chosen, state);
  }

  #drawRows({ now }, chosen) {
    const rows = this.#rows;
    const { context, width } = contextOf(this.#canvas, Math.max(1, rows.length) * rowHeight + axisHeight);
    const hues = partHues();
    const left = width < 560 ? 92 : 190;
    const first = this.#byClock ? Math.min(...rows.map(({ submitted_ms }) => submitted_ms)) : 0;
    const startOf = (row) => (this.#byClock ? row.submitted_ms - first : 0);
    const span = Math.max(1, ...rows.map((row) => startOf(row) + lengthOf(row, now)));
    const x = (ms) => left + ((width - left - 8) * ms) / span;
    drawAxis(context, { hues, left, width, span, x, height: rows.length * rowHeight });
    for (const [i, row] of rows.entries()) {
      const y = i * rowHeight;
      const failed = row.state === 'failed' || row.state === 'refused';
      context.textAlign = 'left';
      context.fillStyle = row === chosen ? hues.blue : failed ? hues.red : hues.soft;
      const name = row.class === '' ? shortId(row) : `${shortId(row)} ${row.class}`;
      context.fillText(fitted(context, name, left - 10), 0, y + rowHeight / 2);
      const start = startOf(row);
      for (const part of row.parts) {
        context.fillStyle = hues.parts[part[0]];
        const from = x(start + part[1]);
        context.fillRect(from, y + 4, Math.max(1, x(start + endOf(row, part, now)) - from - 0.5), rowHeight - 8);
      }
      drawPrediction(context, row.ttft_ms[0], { hues, x: (ms) => x(start + ms), y, width });
    }
  }
}

/** The predicted TTFT as a mark below the bar. */
function drawPrediction(context, predicted, { hues, x, y, width }) {
  const at = predicted === null ? Number.NaN : x(predicted);
  if (!(at <= width)) return;
  context.fillStyle = hues.ink;
  context.fillRect(at - 0.75, y + 2, 1.5, rowHeight - 4);
}

function drawAxis(context, { hues, left, width, span, x, height }) {
  const step = tickStep(span, (width - left) / 80);
  context.fillStyle = hues.soft;
  for (let at = 0; at <= span; at += step) {
    context.fillStyle = hues.grid;
    context.fillRect(x(at), 0, 1, height);
    context.fillStyle = hues.soft;
    context.textAlign = at === 0 ? 'left' : x(at) > width - 30 ? 'right' : 'center';
    context.fillText(at === 0 ? '0' : latency(at), x(at), height + axisHeight / 2);
  }
}

/** Shows a request in words and figures, and its parts. */
export function showRequest(place, row, state) {
  place.replaceChildren(...(row === undefined ? [] : describe(row, state)));
  drawParts(place.querySelector('canvas'), row, state);
}

function describe(row, state) {
  const cached = row.cached_tokens === null ? '' : `, ${whole(row.cached_tokens)} of them cached`;
  const at = row.decode_at === null ? '' : `, decoded on ${state.name(row.decode_at)}`;
  const about = `${row.state}; ${whole(row.prompt_tokens)} prompt tokens${cached}; ${whole(row.output_tokens)} output tokens${at}`;
  const end = row.end === null || row.state === 'finished' ? [] : [element('p', { className: 'over' }, row.end)];
  const reasons = row.placements.map((reason) => element('li', {}, reason));
  return [
    element(
      'div',
      { className: 'head' },
      element('h2', { className: 'mono' }, row.id),
      element('span', { className: 'note' }, row.class),
    ),
    element('p', {}, about),
    ...end,
    element('canvas', { className: 'map' }),
    element(
      'div',
      { className: 'halves' },
      element(
        'div',
        {},
        element('h2', {}, 'Placement'),
        element('ul', { className: 'reasons' }, ...reasons),
        element('h2', {}, 'Blocks of the prompt'),
        element('p', { className: 'note' }, missesOf(row)),
      ),
      element('div', {}, element('h2', {}, 'Predicted and actual'), outcomes(row)),
    ),
  ];
}

/** Why blocks of the prompt were computed. */
function missesOf({ blocks }) {
  if (blocks === null) return 'not looked up yet';
  const parts = [
    [blocks.hits, 'from cache'],
    [blocks.never_seen, 'never seen before'],
    [blocks.evicted, 'evicted'],
    [blocks.elsewhere, 'only on another instance'],
    [blocks.partial, 'not full, or with the last token'],
  ];
  return parts
    .filter(([count]) => count > 0)
    .map(([count, why]) => `${whole(count)} ${why}`)
    .join('; ');
}

function outcomes({ ttft_ms, tbt_ms }) {
  const rows = [['', 'predicted', 'actual', 'error'].map((name) => element('th', {}, name))];
  for (const [name, [predicted, actual]] of [
    ['TTFT', ttft_ms],
    ['TBT, mean', tbt_ms],
  ]) {
    const error =
      predicted === null || actual === null || actual === 0
        ? '–'
        : `${Math.round((100 * (predicted - actual)) / actual)} %`;
    const texts = [name, ...[predicted, actual].map((ms) => (ms === null ? '–' : latency(ms))), error];
    rows.push(texts.map((text) => element('td', {}, text)));
  }
  return element('table', { className: 'figures' }, ...rows.map((cells) => element('tr', {}, ...cells)));
}

/** A row for each part up to the first token; decoding is cut there. */
function drawParts(canvas, row, state) {
  if (canvas === null || row === undefined) return;
  const { now } = state;
  const hues = partHues();
  const before = row.parts.filter(([kind]) => kind !== 'decode');
  const reached = Math.max(0, ...before.map((part) => endOf(row, part, now)));
  const span = Math.max(0.001, reached * 1.15, lengthOf({ ...row, parts: before.length > 0 ? [] : row.parts }, now));
  const { context, width } = contextOf(canvas, row.parts.length * rowHeight + axisHeight);
  const left = width < 560 ? 92 : 190;
  const x = (ms) => left + ((width - left - 8) * Math.min(ms, span)) / span;
  drawAxis(context, { hues, left, width, span, x, height: row.parts.length * rowHeight });
  for (const [i, part] of row.parts.entries()) {
    const [kind, from, , instance, tokens] = part;
    const to = endOf(row, part, now);
    const y = i * rowHeight;
    context.fillStyle = hues.soft;
    context.textAlign = 'left';
    context.fillText(
      fitted(context, instance === null ? kind : `${kind}, ${state.name(instance)}`, left - 10),
      0,
      y + rowHeight / 2,
    );
    context.fillStyle = hues.parts[kind];
    context.fillRect(x(from), y + 4, Math.max(1.5, x(to) - x(from)), rowHeight - 8);
    const time = latency(to - from);
    const texts = tokens > 0 ? [`${time}, ${whole(tokens)} tokens`, time] : [time];
    labelBar(context, texts, { from: x(from), to: x(to), left, width, y: y + rowHeight / 2, hues });
  }
}

/** Writes the first text that fits behind the bar or before it. */
function labelBar(context, texts, { from, to, left, width, y, hues }) {
  context.fillStyle = hues.ink;
  for (const text of texts) {
    const room = context.measureText(text).width + 8;
    const isBehind = to + room < width;
    if (!isBehind && from - room < left) continue;
    context.textAlign = isBehind ? 'left' : 'right';
    context.fillText(text, isBehind ? to + 5 : from - 5, y);
    return;
  }
}
