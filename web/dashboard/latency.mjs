// Percentiles of TTFT and TBT by SLO class against their bounds, now and over time; refusals by cause.
import { colour, element, latency, percent, whole } from '../drawing/format.mjs';
import { timePlot } from '../drawing/time-plot.mjs';

const hues = ['blue', 'amber', 'green', 'violet', 'red', 'soft'];
const figures = [
  ['ttft', 'TTFT'],
  ['tbt', 'TBT, mean of a request'],
  ['completion', 'Completion'],
];
const nameOf = (name) => (name === '' ? 'no class' : name);

export class Latency {
  title = 'Latency';
  #table = element('div', { className: 'scroll' });
  #refusals = element('div', { className: 'card', id: 'refusals' });
  #plots = element('div', { className: 'halves' });
  #drawn = [];

  constructor(place) {
    const note = 'the last 1,024 requests; bounds from the SLO classes of the server';
    place.append(
      element(
        'div',
        { className: 'card', id: 'classes' },
        element('h2', {}, 'Latencies by SLO class'),
        element('p', {}, note),
        this.#table,
      ),
      this.#plots,
      this.#refusals,
    );
    for (const [field, title] of figures.slice(0, 2)) this.#drawn.push(timePlot(this.#plots, `${title}: p99`, field));
  }

  draw(state) {
    const { classes, refusals } = state.frame;
    const rows = classes.flatMap((each) =>
      figures.flatMap(([field, title]) =>
        each[field] === null || (field === 'completion' && each.completion.slo === null)
          ? []
          : [[nameOf(each.name), title, each[field]]],
      ),
    );
    this.#table.replaceChildren(
      rows.length === 0 ? element('div', { className: 'empty' }, 'No request has had a token yet.') : tableOf(rows),
    );
    this.#drawRefusals(refusals);
    const names = [...new Set(state.samples.flatMap(({ classes: all }) => all.map(({ name }) => name)))].slice(
      0,
      hues.length,
    );
    for (const [i, [field]] of figures.slice(0, 2).entries()) {
      const bounds = classes.map((each) => each[field]?.slo).filter((slo) => typeof slo === 'number');
      const series = names.map((name, at) => ({
        label: nameOf(name),
        hue: hues[at],
        values: state.samples.map((sample) => sample.classes.find((each) => each.name === name)?.[field]?.p99 ?? null),
      }));
      this.#drawn[i](
        state.samples.map(({ seconds }) => seconds),
        series,
        bounds,
      );
    }
  }

  #drawRefusals(refusals) {
    const all = refusals.reduce((sum, [, , count]) => sum + count, 0);
    const head = element('h2', {}, 'Refusals by cause');
    if (all === 0)
      return this.#refusals.replaceChildren(head, element('p', {}, 'no request was refused since the start'));
    const most = Math.max(...refusals.map(([, , count]) => count));
    const lines = refusals
      .toSorted(([, , a], [, , b]) => b - a)
      .map(([reason, name, count]) => barLine(`${reason}, ${nameOf(name)}`, count / most, whole(count)));
    this.#refusals.replaceChildren(
      head,
      element('p', {}, `${whole(all)} since the start`),
      element('div', { className: 'tree' }, ...lines),
    );
  }
}

/** A line with a name, a bar and a text. */
export function barLine(name, share, text, hue = 'amber') {
  const filled = element('i');
  filled.style.background = colour(hue);
  filled.style.width = percent(share).replace(' ', '');
  return element(
    'div',
    { className: 'line' },
    element('span', { className: 'name' }, name),
    element('span', { className: 'bar' }, filled),
    element('span', { className: 'note' }, text),
  );
}

function tableOf(rows) {
  const names = ['class', '', 'requests', 'p50', 'p90', 'p99', 'SLO', 'within'];
  const head = element('tr', {}, ...names.map((name) => element('th', {}, name)));
  const lines = rows.map(([name, title, { requests, p50, p90, p99, slo, within }]) => {
    const bound = typeof slo === 'number' ? slo : Number.POSITIVE_INFINITY;
    const cell = (ms) => element('td', { className: ms > bound ? 'over' : '' }, latency(ms));
    const met = element(
      'td',
      { className: within === null ? '' : within >= 0.99 ? 'within' : 'over' },
      within === null ? '–' : percent(within),
    );
    const limit = slo === null ? '–' : typeof slo === 'number' ? latency(slo) : `${slo} alone`;
    return element(
      'tr',
      {},
      element('td', {}, name),
      element('td', { className: 'text' }, title),
      element('td', {}, whole(requests)),
      cell(p50),
      cell(p90),
      cell(p99),
      element('td', {}, limit),
      met,
    );
  });
  return element('table', { className: 'figures' }, head, ...lines);
}
