// Measured lengths as CSV text: `num_prefill_tokens,num_decode_tokens`, and any further columns.
import { Int32List } from '../../util/int32-list.ts';
import { shown, TraceError } from '../request.ts';
import type { LengthTable } from './lengths.ts';

const columns = ['num_prefill_tokens', 'num_decode_tokens'] as const;

/** @throws TraceError naming line, column and value */
export function parseLengthFile(text: string): LengthTable {
  const lines = text.split(/\r?\n/);
  const header = (lines[0] ?? '').split(',');
  const [input, output] = columns.map((name) => {
    const place = header.indexOf(name);
    if (place < 0) throw new TraceError(1, `no column ${name}: ${shown(lines[0])}`);
    return { name, place, values: new Int32List(1024) };
  }) as [Column, Column];
  for (let line = 1; line < lines.length; line++) {
    if (lines[line].trim() === '') continue;
    const cells = lines[line].split(',');
    for (const column of [input, output]) column.values.push(tokensOf(column, cells, line + 1));
  }
  if (input.values.length === 0) throw new TraceError(lines.length, 'the file holds no lengths');
  return { kind: 'table', input: input.values.view(), output: output.values.view() };
}

interface Column {
  readonly name: string;
  readonly place: number;
  readonly values: Int32List;
}

function tokensOf({ name, place }: Column, cells: readonly string[], line: number): number {
  const text = cells[place] ?? '';
  const value = /^\d{1,9}$/.test(text) ? Number(text) : 0;
  if (value < 1) throw new TraceError(line, `${name} is ${shown(text)}: a whole number of 1 to 999999999 expected`);
  return value;
}
