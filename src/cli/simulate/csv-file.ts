// CSV files without quotes, plain or gzip, by the names of their columns.
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { UsageError } from '../usage-error.ts';

const gzipMagic = 0x1f8b;

interface Row {
  /** Line of the file, from 1. */
  readonly line: number;
  readonly cells: readonly string[];
}

/** All or some rows of a file. */
export class CsvTable {
  readonly path: string;
  readonly #columns: ReadonlyMap<string, number>;
  readonly #rows: readonly Row[];

  constructor(path: string, columns: ReadonlyMap<string, number>, rows: readonly Row[]) {
    this.path = path;
    this.#columns = columns;
    this.#rows = rows;
  }

  get length(): number {
    return this.#rows.length;
  }

  /** The rows with these texts in their columns. */
  where(texts: Readonly<Record<string, string>>): CsvTable {
    const conditions = Object.entries(texts).map(([name, text]) => [this.#place(name), text] as const);
    const rows = this.#rows.filter(({ cells }) => conditions.every(([place, text]) => cells[place] === text));
    return new CsvTable(this.path, this.#columns, rows);
  }

  texts(name: string): readonly string[] {
    const place = this.#place(name);
    return this.#rows.map(({ cells }) => cells[place] ?? '');
  }

  /** @throws UsageError naming line, column and text if it is not a number of at least 0 */
  numbers(name: string): Float64Array {
    const place = this.#place(name);
    return Float64Array.from(this.#rows, ({ line, cells }) => {
      const text = cells[place] ?? '';
      const value = Number(text);
      if (text.trim() !== '' && value >= 0 && value < Number.POSITIVE_INFINITY) return value;
      throw new UsageError(`Cannot read ${this.path}: line ${line}: ${name} is '${text.slice(0, 40)}'`);
    });
  }

  #place(name: string): number {
    const place = this.#columns.get(name);
    if (place === undefined) throw new UsageError(`Cannot read ${this.path}: line 1: no column ${name}`);
    return place;
  }
}

/** @throws UsageError naming the file, and the line with too few or too many columns */
export function readCsv(path: string): CsvTable {
  const lines = readText(path).split(/\r?\n/);
  const names = lines[0]?.split(',') ?? [];
  const rows: Row[] = [];
  for (let i = 1; i < lines.length; i++) {
    if (lines[i] === '') continue;
    const cells = lines[i].split(',');
    if (cells.length !== names.length) {
      throw new UsageError(`Cannot read ${path}: line ${i + 1}: ${cells.length} columns: ${names.length} expected`);
    }
    rows.push({ line: i + 1, cells });
  }
  return new CsvTable(path, new Map(names.map((name, place) => [name, place])), rows);
}

function readText(path: string): string {
  try {
    const bytes = readFileSync(path);
    const zipped = bytes.length > 2 && bytes.readUInt16BE(0) === gzipMagic;
    return (zipped ? gunzipSync(bytes) : bytes).toString('utf8');
  } catch (error) {
    throw new UsageError(`Cannot read ${path}: ${error instanceof Error ? error.message : 'unreadable'}`);
  }
}
