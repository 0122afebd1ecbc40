// A heat map of a run: one row of colours per instance.
import { clock, colour, element, most, percent, whole } from './format.mjs';
import { onDraw, timeSplits } from './plots.mjs';

/** A row for each instance, time from left to right. */
export function instances(section, load, names) {
  const choices = [
    ['running', 'Running', (value) => `${whole(value)} requests running`, most(load.running.map(most)), whole],
    ['waiting', 'Waiting', (value) => `${whole(value)} requests waiting`, most(load.waiting.map(most)), whole],
    ['kvUsed', 'KV in use', (value) => `${percent(value)} of the KV memory in use`, 1, percent],
    ...nics(load),
  ];
  let chosen = choices[0];
  const heat = element('canvas', { id: 'heat' });
  const caption = element('div', { className: 'caption' });
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
  section.append(head, heat, caption);
  let place;
  const redraw = () => {
    const [field, , , highest, format] = chosen;
    buttons.forEach((button, i) => {
      button.setAttribute('aria-pressed', String(choices[i] === chosen));
    });
    top.textContent = format(highest);
    place = drawHeat(heat, { seconds: load.seconds, rows: load[field], highest, names });
  };
  heat.onmousemove = ({ offsetX, offsetY }) => {
    const cell = place(offsetX, offsetY);
    const [field, , describe] = chosen;
    caption.textContent =
      cell &&
      `${names[cell.row]} at ${clock(load.seconds[cell.column])}: ${describe(load[field][cell.row][cell.column])}`;
  };
  heat.onmouseleave = () => {
    caption.textContent = '';
  };
  onDraw(redraw);
}

/** Bytes that instances send and receive, if any. */
function nics(load) {
  if (load.links.length === 0 && most(load.nicSent.map(most)) === 0) return [];
  return [
    ['nicSent', 'Sends', (value) => `${percent(value)} of the NIC sends`, 1, percent],
    ['nicReceived', 'Receives', (value) => `${percent(value)} of the NIC receives`, 1, percent],
  ];
}

/** Draws rows of values from 0 to `highest`; returns a function from a point to its cell. */
function drawHeat(canvas, { seconds, rows, highest, names }) {
  const [left, bottom, ratio] = [76, 24, devicePixelRatio];
  const rowHeight = Math.max(1, Math.min(22, Math.floor(560 / rows.length)));
  const [width, height] = [canvas.clientWidth, rowHeight * rows.length];
  canvas.style.height = `${height + bottom}px`;
  canvas.width = width * ratio;
  canvas.height = (height + bottom) * ratio;
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  const ramp = [0, 1, 2, 3].map((i) => rgb(colour(`heat-${i}`)));
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
  label(context, { names, rowHeight, left, height, width, end, x });
  return (atX, atY) => {
    const row = Math.floor(atY / rowHeight);
    const at = ((atX - left) / (width - left)) * end;
    if (row < 0 || row >= rows.length || at < 0) return undefined;
    const after = seconds.findIndex((second) => second > at);
    return { row, column: after < 0 ? seconds.length - 1 : Math.max(0, after - 1) };
  };
}

function label(context, { names, rowHeight, left, height, width, end, x }) {
  context.fillStyle = colour('soft');
  context.font = '12px system-ui, sans-serif';
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * rowHeight >= 14) ?? 1000;
  for (let r = 0; r < names.length; r += every)
    context.fillText(names[r], left - 8, Math.max(7, (r + 0.5) * rowHeight));
  context.textBaseline = 'top';
  for (const at of timeSplits(end, width - left)) {
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
