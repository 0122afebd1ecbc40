// Flows of KV bytes between instances, and debts and settlements of lent memory.
import { drawArrows } from '../drawing/arrows.mjs';
import { compact, element, whole } from '../drawing/format.mjs';
import { sumOf } from './state.mjs';

/** Rows of a table: the largest ones. */
const rowsMax = 12;

export class Flows {
  title = 'Flows';
  #links;
  #debts;

  constructor(place) {
    this.#links = graphCard('Links', 'links');
    this.#debts = graphCard('Debts', 'debts');
    place.append(element('div', { className: 'halves' }, this.#links.card, this.#debts.card));
  }

  draw(state) {
    const { frame, before, instances } = state;
    const names = instances.map(({ name }) => name);
    const seconds = (frame.at_ms - before.at_ms) / 1000;
    const earlier = new Map(before.links.map(([from, to, bytes]) => [`${from} ${to}`, bytes]));
    const links = frame.links.map(([from, to, bytes, backlog]) => {
      const sent = bytes - (earlier.get(`${from} ${to}`) ?? 0);
      return { from, to, bytes, backlog, rate: seconds > 0 ? Math.max(0, sent / seconds) : 0 };
    });
    this.#drawLinks(
      links.sort((a, b) => b.rate - a.rate || b.bytes - a.bytes),
      names,
    );
    this.#drawDebts(frame, names);
  }

  #drawLinks(links, names) {
    const isFlowing = links.some(({ rate }) => rate > 0);
    const field = isFlowing ? 'rate' : 'bytes';
    const unit = isFlowing ? 'bytes a second' : 'bytes since the start';
    const all = links.reduce((sum, link) => sum + link[field], 0);
    this.#links.note.textContent =
      links.length === 0 ? 'no KV has moved between instances' : `${compact(all)} ${unit}, from sender to receiver`;
    const edges = links.filter((link) => link[field] > 0).map((link) => [link.from, link.to, link[field]]);
    drawGraph(this.#links, { names, edges, unit });
    const rows = links
      .slice(0, rowsMax)
      .map(({ from, to, rate, bytes, backlog }) => [
        `${names[from]} to ${names[to]}`,
        ...[rate, bytes, backlog].map(compact),
      ]);
    this.#links.table.replaceChildren(tableOf(['', 'bytes/s', 'bytes', 'backlog'], rows));
  }

  #drawDebts({ debts, columns, instances }, names) {
    const [settled, recalled, lost] = ['settled_blocks', 'recalled_blocks', 'lost_blocks'].map((column) =>
      sumOf({ columns, instances }, column),
    );
    const open = debts.reduce((sum, [, , blocks]) => sum + blocks, 0);
    this.#debts.note.textContent =
      open + settled + recalled + lost === 0
        ? 'no memory has been lent'
        : `${whole(open)} blocks borrowed, from debtor to creditor; since the start ${whole(settled)} settled, ${whole(recalled)} recalled, ${whole(lost)} lost`;
    drawGraph(this.#debts, { names, edges: debts, unit: 'blocks' });
    const at = (column) => columns.indexOf(column);
    const rows = debts
      .slice(0, rowsMax)
      .map(([debtor, creditor, blocks]) => [
        `${names[debtor]} of ${names[creditor]}`,
        whole(blocks),
        whole(instances[debtor][at('settled_blocks')]),
        whole(instances[debtor][at('recalled_blocks')]),
      ]);
    this.#debts.table.replaceChildren(tableOf(['debtor of creditor', 'blocks', 'settled', 'recalled'], rows));
  }
}

function graphCard(title, id) {
  const note = element('p');
  const graph = element('div', { className: 'arrows' });
  const caption = element('div', { className: 'caption' });
  const table = element('div', { className: 'scroll' });
  const card = element('div', { className: 'card', id }, element('h2', {}, title), note, graph, caption, table);
  return { card, note, graph, caption, table };
}

function drawGraph({ graph, caption }, { names, edges, unit }) {
  if (edges.length === 0) return graph.replaceChildren();
  const highest = edges.reduce((most, [, , weight]) => Math.max(most, weight), 0);
  drawArrows(graph, caption, { names, edges: [...edges], highest, unit });
}

function tableOf(names, rows) {
  if (rows.length === 0) return '';
  const line = (tag, texts) => element('tr', {}, ...texts.map((text) => element(tag, {}, text)));
  return element('table', { className: 'figures' }, line('th', names), ...rows.map((texts) => line('td', texts)));
}
