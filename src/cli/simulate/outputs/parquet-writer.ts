// Writes rows as a Parquet file: flat optional columns, plain encoding, no compression.

export type ParquetType = 'int64' | 'double' | 'boolean' | 'string';
type Value = number | boolean | string | undefined;

export interface ParquetColumn {
  readonly name: string;
  readonly type: ParquetType;
}

/** Numbers of the format, https://parquet.apache.org/docs/file-format. */
const physicalTypes: Readonly<Record<ParquetType, number>> = { boolean: 0, int64: 2, double: 5, string: 6 };
const utf8 = 0;
const optional = 1;
const plain = 0;
const runLengths = 3;
const magic = Buffer.from('PAR1');

/** Rows that are collected before they are written. */
const groupRows = 2 ** 15;

interface Chunk {
  readonly offset: number;
  readonly bytes: number;
}

interface RowGroup {
  readonly chunks: readonly Chunk[];
  readonly rows: number;
}

export class ParquetWriter {
  readonly #columns: readonly ParquetColumn[];
  readonly #write: (bytes: Uint8Array) => void;
  /** (columns, rows): of the row group that is collected. */
  readonly #values: Value[][];
  readonly #groups: RowGroup[] = [];
  #rows = 0;
  #offset = 0;

  /** @param write receives the file in pieces */
  constructor(columns: readonly ParquetColumn[], write: (bytes: Uint8Array) => void) {
    this.#columns = columns;
    this.#write = write;
    this.#values = columns.map(() => []);
    this.#put(magic);
  }

  /** @param row values by column; undefined is null */
  add(row: readonly Value[]): void {
    for (const [i, values] of this.#values.entries()) values.push(row[i]);
    if (++this.#rows === groupRows) this.#endGroup();
  }

  close(): void {
    if (this.#rows > 0) this.#endGroup();
    const footer = fileMetaData(this.#columns, this.#groups).bytes;
    const length = Buffer.alloc(4);
    length.writeUInt32LE(footer.length);
    this.#put(Buffer.concat([footer, length, magic]));
  }

  #endGroup(): void {
    const chunks = this.#columns.map(({ type }, i): Chunk => {
      const offset = this.#offset;
      const page = dataPage(type, this.#values[i]);
      this.#put(page);
      this.#values[i].length = 0;
      return { offset, bytes: page.length };
    });
    this.#groups.push({ chunks, rows: this.#rows });
    this.#rows = 0;
  }

  #put(bytes: Uint8Array): void {
    this.#write(bytes);
    this.#offset += bytes.length;
  }
}

/** A page with its header: which values are present, and those values. */
function dataPage(type: ParquetType, values: readonly Value[]): Buffer {
  const present = values.map((value) => value !== undefined);
  const levels = bits(present);
  const run = new ThriftWriter().varint((levels.length << 1) | 1).bytes;
  const length = Buffer.alloc(4);
  length.writeUInt32LE(run.length + levels.length);
  const encoded = encode(
    type,
    values.filter((value) => value !== undefined),
  );
  const body = Buffer.concat([length, run, levels, encoded]);
  const header = new ThriftWriter()
    .int(1, 0)
    .int(2, body.length)
    .int(3, body.length)
    .struct(5, (page) => page.int(1, values.length).int(2, plain).int(3, runLengths).int(4, runLengths));
  return Buffer.concat([header.end().bytes, body]);
}

function encode(type: ParquetType, values: readonly NonNullable<Value>[]): Buffer {
  if (type === 'boolean') return bits(values.map((value) => value === true));
  if (type === 'string') return Buffer.concat(values.map((value) => withLength(String(value))));
  const encoded = Buffer.alloc(8 * values.length);
  for (const [i, value] of values.entries()) {
    if (type === 'double') encoded.writeDoubleLE(Number(value), 8 * i);
    else encoded.writeBigInt64LE(BigInt(Number(value)), 8 * i);
  }
  return encoded;
}

function withLength(text: string): Buffer {
  const bytes = Buffer.from(text);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  return Buffer.concat([length, bytes]);
}

/** Eight values a byte, the first in the lowest bit. */
function bits(values: readonly boolean[]): Buffer {
  const packed = Buffer.alloc(Math.ceil(values.length / 8));
  for (const [i, value] of values.entries()) if (value) packed[i >> 3] |= 1 << (i & 7);
  return packed;
}

function fileMetaData(columns: readonly ParquetColumn[], groups: readonly RowGroup[]): ThriftWriter {
  const rows = groups.reduce((sum, group) => sum + group.rows, 0);
  const element = ({ name, type }: ParquetColumn) => {
    const written = new ThriftWriter().int(1, physicalTypes[type]).int(3, optional).text(4, name);
    return type === 'string' ? written.int(6, utf8) : written;
  };
  const chunk = ({ name, type }: ParquetColumn, { offset, bytes }: Chunk, values: number) =>
    new ThriftWriter().long(2, offset).struct(3, (data) =>
      data
        .int(1, physicalTypes[type])
        .list(
          2,
          'int',
          [plain, runLengths].map((encoding) => new ThriftWriter().varint(encoding << 1)),
        )
        .list(3, 'text', [new ThriftWriter().string(name)])
        .int(4, 0)
        .long(5, values)
        .long(6, bytes)
        .long(7, bytes)
        .long(9, offset),
    );
  const rowGroup = (group: RowGroup) =>
    new ThriftWriter()
      .list(
        1,
        'struct',
        columns.map((column, i) => chunk(column, group.chunks[i], group.rows).end()),
      )
      .long(
        2,
        group.chunks.reduce((sum, { bytes }) => sum + bytes, 0),
      )
      .long(3, group.rows)
      .end();
  const root = new ThriftWriter().text(4, 'requests').int(5, columns.length).end();
  return new ThriftWriter()
    .int(1, 1)
    .list(2, 'struct', [root, ...columns.map((column) => element(column).end())])
    .long(3, rows)
    .list(4, 'struct', groups.map(rowGroup))
    .text(6, 'kvasir')
    .end();
}

/** Types of the compact protocol of Thrift. */
const thriftTypes = { int: 5, long: 6, text: 8, list: 9, struct: 12 } as const;

/** A struct in the compact protocol of Thrift; fields in ascending order. */
class ThriftWriter {
  readonly #parts: Buffer[] = [];
  #field = 0;

  get bytes(): Buffer {
    return Buffer.concat(this.#parts);
  }

  varint(value: number): this {
    const bytes: number[] = [];
    let left = value;
    for (; left >= 128; left = Math.floor(left / 128)) bytes.push((left % 128) | 128);
    return this.#add([...bytes, left]);
  }

  string(text: string): this {
    const bytes = Buffer.from(text);
    return this.varint(bytes.length).#add(bytes);
  }

  int(field: number, value: number): this {
    return this.#begin(field, 'int').varint(2 * value);
  }

  long(field: number, value: number): this {
    return this.#begin(field, 'long').varint(2 * value);
  }

  text(field: number, value: string): this {
    return this.#begin(field, 'text').string(value);
  }

  list(field: number, type: keyof typeof thriftTypes, items: readonly ThriftWriter[]): this {
    this.#begin(field, 'list');
    if (items.length < 15) this.#add([(items.length << 4) | thriftTypes[type]]);
    else this.#add([0xf0 | thriftTypes[type]]).varint(items.length);
    return this.#add(Buffer.concat(items.map(({ bytes }) => bytes)));
  }

  struct(field: number, write: (inner: ThriftWriter) => ThriftWriter): this {
    return this.#begin(field, 'struct').#add(write(new ThriftWriter()).end().bytes);
  }

  /** Ends the struct. */
  end(): this {
    return this.#add([0]);
  }

  #begin(field: number, type: keyof typeof thriftTypes): this {
    const delta = field - this.#field;
    this.#field = field;
    return this.#add([(delta << 4) | thriftTypes[type]]);
  }

  #add(bytes: Uint8Array | readonly number[]): this {
    this.#parts.push(Buffer.from(bytes));
    return this;
  }
}
