// The slices of a model as one SVG: operations of model workers above, attention between them below.
import {
  type AttentionReport,
  groupsOf,
  type SliceGroup,
  type SliceReport,
  titleOf,
} from '../../graph/slice-report.ts';

export interface GraphReport {
  readonly path: string;
  readonly architecture: string;
  readonly layers: number;
  readonly slices: readonly SliceReport[];
}

const rowHeight = 20;
const characterWidth = 6.6;
const gap = 180;
const top = 96;
const margin = 20;
const boxHeight = 60;
const colours = { text: '#24292f', line: '#d0d7de', send: '#0969da', wait: '#8250df', carried: '#bc4c00' };

/** A group of slices that are alike, where it is drawn. */
interface Column {
  readonly group: SliceGroup;
  readonly left: number;
  readonly right: number;
  readonly bottom: number;
}

export function slicesSvg({ architecture, layers, slices }: GraphReport): string {
  const columns = columnsOf(groupsOf(slices).map(withShortNames));
  const width = Math.max(...columns.map(({ right }) => right)) + margin;
  const attentionTop = Math.max(...columns.map(({ bottom }) => bottom)) + 64;
  const height = attentionTop + boxHeight + 40;
  const title = `${architecture}: ${layers} layers, ${slices.length} slices`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="ui-monospace, monospace" font-size="11" fill="${colours.text}">`,
    `<title>${escaped(title)}</title>`,
    `<defs>${['send', 'wait', 'carried'].map((kind) => arrowHead(kind as keyof typeof colours)).join('')}</defs>`,
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    text(margin, 22, title, 'font-size="14" font-weight="bold"'),
    text(margin, 42, 'Bytes per token; Q, K, V and attention in bf16, carried context in f32'),
    band(width, top - 40, attentionTop - top + 16, '#f6f8fa', 'Model workers'),
    band(width, attentionTop - 18, boxHeight + 44, '#fbf3ff', 'Attention workers'),
    ...columns.flatMap(drawColumn),
    ...columns.flatMap((column, i) =>
      columns[i + 1] === undefined ? [] : drawGap(column, columns[i + 1], attentionTop),
    ),
    '</svg>',
  ].join('\n');
}

/** Leaves out what comes before the number of the layer in the names of checkpoint tensors. */
function withShortNames(group: SliceGroup): SliceGroup {
  return { ...group, operations: group.operations.map((name) => name.replace(/ \S*?\.(?=[N\d])/, ' ')) };
}

function columnsOf(groups: readonly SliceGroup[]): readonly Column[] {
  let left = margin;
  return groups.map((group) => {
    const longest = Math.max(...[titleOf(group), ...group.operations].map((name) => name.length));
    const right = Math.ceil(left + longest * characterWidth + 20);
    const column = { group, left, right, bottom: top + group.operations.length * rowHeight };
    left = right + gap;
    return column;
  });
}

function drawColumn({ group, left, right, bottom }: Column): readonly string[] {
  return [
    text(left, top - 10, titleOf(group), 'font-weight="bold"'),
    `<rect x="${left}" y="${top}" width="${right - left}" height="${bottom - top}" rx="4" fill="#fff" stroke="${colours.line}"/>`,
    ...group.operations.map((name, i) => text(left + 10, top + i * rowHeight + 14, name, styleOf(name))),
  ];
}

function styleOf(name: string): string {
  if (name.startsWith('send')) return `fill="${colours.send}" font-weight="bold"`;
  return name === 'waitPartial' ? `fill="${colours.wait}" font-weight="bold"` : '';
}

/** The attention between two columns: what is sent, what returns, and what is carried. */
function drawGap({ group, right }: Column, next: Column, attentionTop: number): readonly string[] {
  const { operations, slice } = group;
  const { attention } = slice;
  if (attention === undefined) return [];
  const middleOf = (rows: readonly string[], name: string): number => top + (rows.indexOf(name) + 0.5) * rowHeight;
  const [q, kv] = ['sendQ', 'sendKV'].map((name) => middleOf(operations, name));
  const waits = middleOf(next.group.operations, 'waitPartial');
  const [kvX, qX, waitX] = [right + 78, right + 96, next.left - 24];
  const carriedY = top - 14;
  const boxWidth = next.left - right - 8;
  return [
    path('send', `M${right} ${q} H${qX} V${attentionTop}`),
    text(right + 6, q - 5, `Q ${attention.qBytesPerToken}`, `fill="${colours.send}"`),
    path('send', `M${right} ${kv} H${kvX} V${attentionTop}`),
    text(right + 6, kv - 5, `K, V ${attention.kvBytesPerToken}`, `fill="${colours.send}"`),
    path('wait', `M${waitX} ${attentionTop} V${waits} H${next.left}`),
    text(waitX - 6, attentionTop - 28, `${attention.partialBytesPerToken}`, `fill="${colours.wait}" text-anchor="end"`),
    path('carried', `M${right + 4} ${carriedY} H${next.left - 4}`),
    text(
      (right + next.left) / 2,
      carriedY - 6,
      `carried ${slice.carriedBytesPerToken}`,
      `fill="${colours.carried}" text-anchor="middle"`,
    ),
    `<rect x="${right + 4}" y="${attentionTop}" width="${boxWidth}" height="${boxHeight}" rx="4" fill="#fff" stroke="${colours.wait}"/>`,
    ...attentionLines(group, attention).map((line, i) => text(right + 14, attentionTop + 18 + 17 * i, line)),
  ];
}

function attentionLines({ first, last }: SliceGroup, attention: AttentionReport): readonly string[] {
  const { heads, kvHeads, headDim, window, alibi } = attention;
  const limits = [...(window === undefined ? [] : [`window ${window}`]), ...(alibi ? ['ALiBi'] : [])];
  return [
    first === last ? `attention, layer ${first}` : `attention, layer N`,
    `${heads} heads of ${headDim}, ${kvHeads} KV`,
    ...(limits.length === 0 || first !== last ? [] : [limits.join(', ')]),
  ];
}

function band(width: number, y: number, height: number, fill: string, label: string): string {
  return `<rect x="8" y="${y}" width="${width - 16}" height="${height}" rx="6" fill="${fill}"/>${text(margin, y + height - 8, label, 'font-weight="bold" fill="#57606a"')}`;
}

function path(kind: 'send' | 'wait' | 'carried', way: string): string {
  return `<path d="${way}" fill="none" stroke="${colours[kind]}" stroke-width="1.5" marker-end="url(#${kind})"/>`;
}

function arrowHead(kind: keyof typeof colours): string {
  return `<marker id="${kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="${colours[kind]}"/></marker>`;
}

function text(x: number, y: number, content: string, style = ''): string {
  return `<text x="${x}" y="${y}" ${style}>${escaped(content)}</text>`;
}

function escaped(content: string): string {
  return content.replace(/[<&]/g, (c) => (c === '<' ? '&lt;' : '&amp;'));
}
