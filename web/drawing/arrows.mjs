// Instances on a circle, with arrows between them for traffic and for debts.
import { clock, colour, compact, element, most, sum, whole } from './format.mjs';
import { onDraw } from './plots.mjs';

/** Number of arrows drawn: the strongest ones. */
const arrowsMax = 80;
const [centreX, centreY, radius] = [260, 150, 112];

/** Bytes from one instance to another, over the whole run. */
export function links(place, load, names) {
  if (load.links.length === 0) return;
  const edges = load.links.map(({ from, to, bytes }) => [from, to, bytes]);
  const all = sum(edges.map(([, , bytes]) => bytes));
  const note = `${compact(all)} bytes in all, from sender to receiver`;
  const { graph, caption } = graphCard(place, 'Links', note);
  const draw = () => drawArrows(graph, caption, { names, edges, highest: strongest(edges), unit: 'bytes' });
  onDraw(draw);
}

/** Blocks that debtors have borrowed from creditors, at the time of the slider. */
export function debts(place, load, names) {
  const highest = most(load.debts.map(strongest));
  if (highest === 0) return;
  const lent = load.debts.map((edges) => sum(edges.map(([, , blocks]) => blocks)));
  let at = lent.indexOf(most(lent));
  const { graph, caption, note } = graphCard(place, 'Debts', '');
  const slider = element('input', { type: 'range', min: 0, max: load.debts.length - 1, value: at });
  slider.setAttribute('aria-label', 'time');
  graph.before(slider);
  const draw = () => {
    const when = clock(load.seconds[at]);
    note.textContent = `${whole(lent[at])} blocks lent at ${when}, from debtor to creditor`;
    drawArrows(graph, caption, { names, edges: load.debts[at], highest, unit: 'blocks' });
  };
  slider.oninput = () => {
    at = Number(slider.value);
    draw();
  };
  onDraw(draw);
}

const strongest = (edges) => most(edges.map(([, , weight]) => weight));

function graphCard(place, title, text) {
  const note = element('p', {}, text);
  const graph = element('div', { className: 'arrows' });
  const caption = element('div', { className: 'caption' });
  place.append(element('div', { className: 'card' }, element('h2', {}, title), note, graph, caption));
  return { graph, caption, note };
}

/** @param edges from, to, weight */
export function drawArrows(target, caption, { names, edges, highest, unit }) {
  const parts = [];
  const shown = edges.toSorted(([, , a], [, , b]) => b - a).slice(0, arrowsMax);
  for (const [from, to, weight] of shown.reverse()) {
    const path = arrow(point(from, names.length), point(to, names.length), weight / highest);
    const show = () => {
      caption.textContent = `${names[from]} to ${names[to]}: ${compact(weight)} ${unit}`;
    };
    path.onmouseenter = show;
    path.onmouseleave = () => {
      caption.textContent = '';
    };
    parts.push(path);
  }
  const every = Math.ceil(names.length / 32);
  parts.push(...dotsOf(names.length));
  for (let i = 0; i < names.length; i += every) parts.push(nameAt(names[i], i, names.length));
  target.replaceChildren(svg('svg', { viewBox: `0 0 ${2 * centreX} ${2 * centreY}`, role: 'img' }, ...parts));
}

/** A dot for each instance; those of many are one path, which is drawn sooner. */
function dotsOf(count) {
  const all = Array.from({ length: count }, (_, i) => point(i, count));
  if (count <= 100) return all.map(([cx, cy]) => svg('circle', { cx, cy, r: 4, fill: colour('ink') }));
  const d = all.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join('');
  return [svg('path', { d, stroke: colour('ink'), 'stroke-width': 2, 'stroke-linecap': 'round' })];
}

/** The place of an instance on the circle; the first one is on top. */
function point(i, count, away = radius) {
  const angle = (2 * Math.PI * i) / count - Math.PI / 2;
  return [centreX + away * Math.cos(angle), centreY + away * Math.sin(angle)];
}

/** A curve with a head, so that both directions are separate lines. @param share of the strongest */
function arrow([fromX, fromY], [toX, toY], share) {
  const [dx, dy] = [toX - fromX, toY - fromY];
  const length = Math.hypot(dx, dy);
  const [sideX, sideY] = [(-0.18 * dy * radius) / length, (0.18 * dx * radius) / length];
  const [midX, midY] = [(fromX + toX) / 2 + sideX, (fromY + toY) / 2 + sideY];
  const [inX, inY] = [toX - midX, toY - midY];
  const inLength = Math.hypot(inX, inY);
  const [ux, uy] = [inX / inLength, inY / inLength];
  const [tipX, tipY] = [toX - 7 * ux, toY - 7 * uy];
  const size = 4 + 4 * share;
  const [backX, backY] = [tipX - size * ux, tipY - size * uy];
  const wing = 0.55 * size;
  const d = [
    `M${fromX} ${fromY}Q${midX} ${midY} ${backX} ${backY}`,
    `M${tipX} ${tipY}L${backX - wing * uy} ${backY + wing * ux}L${backX + wing * uy} ${backY - wing * ux}Z`,
  ].join('');
  const hue = colour('blue');
  return svg('path', {
    ...{ d, fill: 'none', stroke: hue, 'stroke-width': 0.8 + 4.2 * share },
    ...{ 'stroke-opacity': 0.25 + 0.7 * share, 'stroke-linejoin': 'round' },
  });
}

function nameAt(name, i, count) {
  const [x, y] = point(i, count, radius + 14);
  const across = (x - centreX) / radius;
  const anchor = across > 0.2 ? 'start' : across < -0.2 ? 'end' : 'middle';
  const text = svg('text', { x, y: y + 4, 'text-anchor': anchor, fill: colour('soft') });
  text.textContent = name;
  return text;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
