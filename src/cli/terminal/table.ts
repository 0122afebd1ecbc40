// Figures as aligned text of at most 100 columns: tables with right-aligned numbers, and lists of labelled values.
import { fieldText, readable, readableBytes } from './fields.ts';

export const columnsMax = 100;
const gap = '  ';

type Cell = { readonly text: string; readonly isNumber: boolean };

/** Prints objects of the same fields: several as a table, one as a list. Nothing for no rows. */
export function printTable(rows: readonly object[], title?: string): void {
  const lines = rows.length === 1 ? listLines(rows[0]) : tableLines(rows, columnsMax - gap.length);
  if (lines.length === 0) return;
  if (title !== undefined) console.log(title);
  for (const line of lines) console.log(title === undefined ? line : `  ${line}`.trimEnd());
  console.log();
}

/** Prints labels and texts in two aligned columns under a title. */
export function printList(title: string, entries: readonly (readonly [string, string])[]): void {
  if (entries.length === 0) return;
  console.log(title);
  for (const line of alignedPairs(entries, columnsMax - 2)) console.log(`  ${line}`);
  console.log();
}

/** A line for each field of an object: its label, its value and its unit. */
export function listLines(row: object): readonly string[] {
  const entries = [...flattened(row)].map(([name, value]) => {
    const { label, unit } = fieldText(name);
    const { text } = cellOf(name, value);
    return [label, unit === '' || text === '-' ? text : `${text} ${unit}`] as const;
  });
  return alignedPairs(entries, columnsMax);
}

/** Long texts continue below where they started. */
function alignedPairs(entries: readonly (readonly [string, string])[], width: number): readonly string[] {
  const labels = Math.max(...entries.map(([label]) => label.length), 0) + gap.length;
  return entries.flatMap(([label, text]) =>
    wrapped(text, width - labels).map((line, i) => `${(i === 0 ? label : '').padEnd(labels)}${line}`.trimEnd()),
  );
}

export function wrapped(text: string, width: number): readonly string[] {
  const lines = [''];
  for (const word of text.split(' ')) {
    const last = lines[lines.length - 1];
    if (last !== '' && last.length + 1 + word.length > width) lines.push(word);
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`;
  }
  return lines;
}

/** A header line and one for each object; a table that is too wide continues below, with its first column repeated. */
export function tableLines(rows: readonly object[], width = columnsMax): readonly string[] {
  const flat = rows.map((row) => new Map(flattened(row)));
  const names = [...new Set(flat.flatMap((row) => [...row.keys()]))];
  const columns = names.map((name) => {
    const cells = flat.map((row) => cellOf(name, row.get(name)));
    const { label, unit } = fieldText(name);
    const header = name === '' ? '' : unit === '' ? label : `${label} (${unit})`;
    const isNumber = cells.every((cell) => cell.isNumber);
    const cellWidth = Math.max(header.length, ...cells.map(({ text }) => text.length));
    const pad = (text: string) => (isNumber ? text.padStart(cellWidth) : text.padEnd(cellWidth));
    return { width: cellWidth, lines: [header, ...cells.map(({ text }) => text)].map(pad) };
  });
  const [first, ...others] = columns;
  if (first === undefined) return [];
  const parts: (typeof columns)[] = [[first]];
  let used = first.width;
  for (const column of others) {
    if (used + gap.length + column.width > width) {
      parts.push([first]);
      used = first.width;
    }
    parts.at(-1)?.push(column);
    used += gap.length + column.width;
  }
  return parts.flatMap((part, place) => {
    const lines = first.lines.map((_, line) =>
      part
        .map(({ lines: texts }) => texts[line])
        .join(gap)
        .trimEnd(),
    );
    return place === 0 ? lines : ['', ...lines];
  });
}

/** Fields of inner objects are named after both: `latency.p50` is `latencyP50`. */
function* flattened(row: object, prefix = ''): Generator<readonly [string, unknown]> {
  for (const [name, value] of Object.entries(row)) {
    const full = prefix === '' ? name : `${prefix}${name.charAt(0).toUpperCase()}${name.slice(1)}`;
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) yield* flattened(value, full);
    else yield [full, value];
  }
}

function cellOf(name: string, value: unknown): Cell {
  if (value === undefined || value === null) return { text: '-', isNumber: true };
  if (typeof value === 'number')
    return { text: fieldText(name).isBytes ? readableBytes(value) : readable(value), isNumber: true };
  if (Array.isArray(value)) {
    const texts = value.map((part) => (typeof part === 'number' ? readable(part) : String(part)));
    return { text: texts.join(' '), isNumber: false };
  }
  return { text: typeof value === 'boolean' ? (value ? 'yes' : 'no') : String(value), isNumber: false };
}
