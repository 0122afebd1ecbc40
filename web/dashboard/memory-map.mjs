// The map of memory: a bar for each instance and tier, with pages by owner, age, pinned and lent.
import { contextOf, fitted, mixed, palette } from '../drawing/canvas.mjs';
import { element, percent, whole } from '../drawing/format.mjs';

/** More instances than this are cells without names. */
const rowsMax = 32;

/** The parts of a device bar: name, pages and colour. */
export function partsOf(instance, hues) {
  const { pages, used, cached, pinned, lent, ages, owners } = instance;
  const rest = Math.max(0, used - pinned);
  const owned = owners.reduce((sum, [, count]) => sum + count, 0);
  // Shared pages count for each owner.
  const scale = owned > rest ? rest / owned : 1;
  const parts = owners.map(([id, count], i) => [id, count * scale, hues[i % 2 === 0 ? 'owner' : 'other']]);
  const named = parts.reduce((sum, [, count]) => sum + count, 0);
  parts.push(['other requests', rest - named, hues.rest], ['pinned', pinned, hues.violet], ['lent', lent, hues.amber]);
  const known = ages.reduce((sum, count) => sum + count, 0);
  for (const [i, count] of ages.entries())
    parts.push([`cached, ${hues.ages[i]}`, known > 0 ? (count * cached) / known : 0, hues.cached[i]]);
  if (known === 0) parts.push(['cached', cached, hues.cached[2]]);
  return { parts: parts.filter(([, count]) => count > 0), total: Math.max(1, pages) };
}

/** Colours of the parts, and names of the ages. */
export function memoryHues(frame) {
  const hues = palette();
  const mix = (hue, share) => mixed(hues[hue], hues.card, share / 100);
  const bounds = frame.page_ages_s.map((seconds) => (seconds < 60 ? `${seconds} s` : `${seconds / 60} min`));
  return {
    ...hues,
    ...{ owner: hues.blue, other: mix('blue', 72), rest: mix('blue', 45) },
    cached: [90, 72, 55, 40, 26].map((share) => mix('green', share)),
    ages: [...bounds.map((bound) => `unused up to ${bound}`), `longer than ${bounds.at(-1)}`],
    ...{ host: mix('soft', 85), ssd: mix('soft', 50) },
  };
}

export class MemoryMap {
  title = 'Memory';
  #canvas = element('canvas', { className: 'map', id: 'memory' });
  #caption = element('div', { className: 'caption' });
  #legend = element('div', { className: 'legend' });
  #detail = element('div', { className: 'card', id: 'instance' });
  #note = element('p');
  #cells = [];
  #chosen = 0;
  #state;

  constructor(place) {
    const card = element('div', { className: 'card' }, element('h2', {}, 'Memory of every instance'), this.#note);
    card.append(this.#canvas, this.#caption, this.#legend);
    place.append(card, this.#detail);
    this.#canvas.onmousemove = (event) => this.#point(event);
    this.#canvas.onmouseleave = () => {
      this.#caption.textContent = '';
    };
    this.#canvas.onclick = (event) => {
      const cell = this.#cellAt(event);
      if (cell === undefined) return;
      this.#chosen = cell.index;
      this.draw(this.#state);
    };
  }

  draw(state) {
    this.#state = state;
    const shown = state.instances
      .map((instance, index) => ({ instance, index }))
      .filter(({ instance }) => instance.ready !== 2);
    const hues = memoryHues(state.frame);
    const tiers = shown.some(({ instance }) => instance.host_max + instance.ssd_max > 0);
    this.#note.textContent = `${whole(shown.length)} instances; device memory${tiers ? ', host memory and SSD below it' : ''}`;
    if (shown.length <= rowsMax) this.#drawRows(shown, hues, tiers);
    else this.#drawCells(shown, hues, tiers);
    this.#drawLegend(hues, tiers);
    this.#describe(state, hues);
  }

  #drawRows(shown, hues, tiers) {
    const rowHeight = tiers ? 32 : 24;
    const { context, width } = contextOf(this.#canvas, Math.max(24, shown.length * rowHeight));
    const [left, right] = width < 560 ? [84, 0] : [128, 150];
    this.#cells = shown.map(({ instance, index }, i) => {
      const cell = { x: left, y: i * rowHeight, width: width - left - right, height: rowHeight, index, instance };
      context.fillStyle = index === this.#chosen ? hues.ink : hues.soft;
      context.textAlign = 'left';
      context.fillText(fitted(context, instance.name, left - 10), 0, cell.y + 9);
      drawBars(context, cell, hues, { device: 16, tier: tiers ? 4 : 0 });
      if (right > 0) {
        context.fillStyle = hues.soft;
        context.textAlign = 'right';
        context.fillText(loadOf(instance), width, cell.y + 9);
      }
      return { ...cell, x: 0, width };
    });
  }

  #drawCells(shown, hues, tiers) {
    const width = this.#canvas.clientWidth;
    const columns = Math.max(4, Math.floor(width / (shown.length > 400 ? 58 : 92)));
    const [device, tier] = shown.length > 400 ? [10, tiers ? 2 : 0] : [14, tiers ? 3 : 0];
    const step = device + 2 * tier + 4;
    const { context } = contextOf(this.#canvas, Math.ceil(shown.length / columns) * step);
    const each = width / columns;
    this.#cells = shown.map(({ instance, index }, i) => {
      const cell = {
        ...{ x: (i % columns) * each, y: Math.floor(i / columns) * step, width: each - 4, height: step - 3 },
        ...{ index, instance },
      };
      drawBars(context, cell, hues, { device, tier });
      if (index === this.#chosen) {
        context.strokeStyle = hues.ink;
        context.strokeRect(cell.x + 0.5, cell.y + 0.5, cell.width - 1, cell.height - 1);
      }
      return cell;
    });
  }

  #drawLegend(hues, tiers) {
    const entries = [
      ['requests', hues.owner],
      ['pinned', hues.violet],
      ['lent', hues.amber],
      ...hues.ages.map((age, i) => [i === 0 ? `cached, ${age}` : age, hues.cached[i]]),
      ['free', hues.grid],
      ...(tiers
        ? [
            ['host', hues.host],
            ['SSD', hues.ssd],
          ]
        : []),
    ];
    this.#legend.replaceChildren(...entries.map(([name, hue]) => mark(name, hue)));
  }

  #describe(state, hues) {
    const instance = state.instances[this.#chosen];
    if (instance === undefined) return this.#detail.replaceChildren();
    const { parts, total } = partsOf(instance, hues);
    const free = Math.max(0, total - parts.reduce((sum, [, count]) => sum + count, 0));
    const rows = [...parts, ['free', free, hues.grid]].map(([name, count, hue]) => {
      const label = element('td', {}, mark(name, hue));
      return element('tr', {}, label, element('td', {}, whole(count)), element('td', {}, percent(count / total)));
    });
    for (const [name, blocks, most] of [
      ['host', instance.host, instance.host_max],
      ['SSD', instance.ssd, instance.ssd_max],
    ])
      if (most > 0)
        rows.push(
          element(
            'tr',
            {},
            element('td', {}, mark(name, hues.host)),
            element('td', {}, `${whole(blocks)} blocks`),
            element('td', {}, percent(blocks / most)),
          ),
        );
    const table = element('table', { className: 'figures' }, ...rows);
    const about = element(
      'p',
      {},
      `${instance.role}; ${loadOf(instance)}; ${whole(total)} pages of device memory; a click on the map selects an instance`,
    );
    this.#detail.replaceChildren(
      element('h2', {}, instance.name),
      about,
      element('div', { className: 'scroll' }, table),
    );
  }

  #cellAt({ offsetX, offsetY }) {
    return this.#cells.find(
      ({ x, y, width, height }) => offsetX >= x && offsetX < x + width && offsetY >= y && offsetY < y + height,
    );
  }

  #point(event) {
    const cell = this.#cellAt(event);
    if (cell === undefined) return;
    const { instance } = cell;
    const held = `${whole(instance.used)} pages used, ${whole(instance.cached)} cached, ${whole(instance.free)} free`;
    this.#caption.textContent = `${instance.name}: ${held}; ${loadOf(instance)}`;
  }
}

function mark(name, hue) {
  const square = element('i');
  square.style.background = hue;
  return element('span', {}, square, name);
}

function loadOf({ ready, running, waiting }) {
  if (ready === 0) return 'not ready';
  return waiting > 0 ? `${whole(running)} running, ${whole(waiting)} waiting` : `${whole(running)} running`;
}

function drawBars(context, { x, y, width, instance }, hues, { device, tier }) {
  const top = y + 1;
  context.fillStyle = instance.ready === 0 ? hues.line : hues.grid;
  context.fillRect(x, top, width, device);
  const { parts, total } = partsOf(instance, hues);
  let at = x;
  for (const [, count, hue] of parts) {
    const wide = (width * count) / total;
    context.fillStyle = hue;
    context.fillRect(at, top, wide, device);
    at += wide;
  }
  if (tier === 0) return;
  for (const [i, blocks, most, hue] of [
    [0, instance.host, instance.host_max, hues.host],
    [1, instance.ssd, instance.ssd_max, hues.ssd],
  ]) {
    if (most === 0) continue;
    const line = top + device + 1 + i * (tier + 1);
    context.fillStyle = hues.grid;
    context.fillRect(x, line, width, tier);
    context.fillStyle = hue;
    context.fillRect(x, line, (width * blocks) / most, tier);
  }
}
