// Throughput by price of divisions (a, b) and of instances without attention workers, as one SVG.
import { readable } from '../terminal/fields.ts';
import type { DopPlan } from './plan-dop.ts';
import { fixed, svgDocument, ticks } from './svg.ts';

const width = 860;
const height = 380;
const margin = { left: 64, top: 40, bottom: 44, right: 64 };
const colours = { divided: '#1f6feb', whole: '#d1242f' } as const;

interface Mark {
  readonly price: number;
  readonly tokensPerSecond: number;
  readonly label: string;
  readonly kind: keyof typeof colours;
}

/** Lines through the origin have equal cost of a token: a mark above another's line is cheaper. */
export function dopPlot({ model, contextTokens, dop, coupled }: DopPlan): string {
  const marks: readonly Mark[] = [
    ...fastest(dop).map((row): Mark => {
      const batches = row.staggeredBatches === 2 ? '' : `, n = ${row.staggeredBatches}`;
      const label = `(${row.dop})${batches}`;
      return { price: row.pricePerHour, tokensPerSecond: row.tokensPerSecond, label, kind: 'divided' };
    }),
    ...coupled.map((row): Mark => {
      return { price: row.pricePerHour, tokensPerSecond: row.tokensPerSecond, label: `tp ${row.tp}`, kind: 'whole' };
    }),
  ];
  const priceMax = 1.1 * Math.max(...marks.map(({ price }) => price));
  const tokensMax = 1.1 * Math.max(...marks.map(({ tokensPerSecond }) => tokensPerSecond));
  const x = (price: number) => fixed(margin.left + (price / priceMax) * (width - margin.left - margin.right));
  const y = (tokens: number) =>
    fixed(height - margin.bottom - (tokens / tokensMax) * (height - margin.top - margin.bottom));
  const steepest = (kind: Mark['kind']) =>
    Math.max(
      0,
      ...marks.filter((mark) => mark.kind === kind).map(({ price, tokensPerSecond }) => tokensPerSecond / price),
    );
  const line = (kind: Mark['kind']) => {
    const slope = steepest(kind);
    const price = Math.min(priceMax, slope === 0 ? 0 : tokensMax / slope);
    return `<line x1="${x(0)}" y1="${y(0)}" x2="${x(price)}" y2="${y(price * slope)}" stroke="${colours[kind]}" stroke-dasharray="4 4"/>`;
  };
  const legend = [
    `<text x="${margin.left}" y="34" fill="${colours.divided}">model workers and attention workers</text>`,
    `<text x="${margin.left + 280}" y="34" fill="${colours.whole}">instances without attention workers</text>`,
    `<text x="${margin.left + 560}" y="34">dashed: equal cost of a token</text>`,
  ];
  return svgDocument(width, height, `Divisions of ${model}`, [
    `<text x="${margin.left}" y="16" font-weight="bold">${model}, sequences of ${readable(contextTokens)} tokens: tokens per second by price per hour</text>`,
    ...legend,
    ...ticks(priceMax).map((price) => `<text x="${x(price)}" y="${height - 26}" text-anchor="middle">${price}</text>`),
    ...ticks(tokensMax).map(
      (tokens) =>
        `<line x1="${margin.left}" y1="${y(tokens)}" x2="${width - margin.right}" y2="${y(tokens)}" stroke="#d0d7de"/><text x="${margin.left - 6}" y="${y(tokens)}" dy="4" text-anchor="end">${readable(tokens)}</text>`,
    ),
    `<text x="${width - margin.right}" y="${height - 8}" text-anchor="end">price per hour</text>`,
    line('divided'),
    line('whole'),
    ...marks
      .toSorted((a, b) => a.price - b.price)
      .map(
        ({ price, tokensPerSecond, label, kind }, i) =>
          `<circle cx="${x(price)}" cy="${y(tokensPerSecond)}" r="4" fill="${colours[kind]}"/><text x="${x(price)}" y="${y(tokensPerSecond)}" dx="5" dy="${kind === 'whole' || i % 2 === 0 ? -5 : 15}" fill="${colours[kind]}">${label}</text>`,
      ),
  ]);
}

/** Of each division the number of staggered batches with the highest throughput. */
function fastest(rows: DopPlan['dop']): DopPlan['dop'] {
  return rows.filter((row) =>
    rows.every((other) => other.dop !== row.dop || other.tokensPerSecond <= row.tokensPerSecond),
  );
}
