// Rows as a Parquet file: flat columns that may lack values, by hyparquet-writer.
import { ByteWriter, ParquetWriter, schemaFromColumnData } from 'hyparquet-writer';

export type ParquetType = 'INT64' | 'DOUBLE' | 'BOOLEAN' | 'STRING';
type Value = number | boolean | string | undefined;

export interface ParquetColumn {
  readonly name: string;
  readonly type: ParquetType;
}

/** Rows that are collected before they are written. */
const groupRows = 2 ** 15;

export class ParquetFile {
  readonly #columns: readonly ParquetColumn[];
  readonly #write: (bytes: Uint8Array) => void;
  readonly #bytes = new ByteWriter();
  readonly #writer: ParquetWriter;
  /** (columns, rows): of the row group that is collected. */
  #values: (bigint | Value)[][];

  /** @param write receives the bytes of the file in order */
  constructor(columns: readonly ParquetColumn[], write: (bytes: Uint8Array) => void) {
    this.#columns = columns;
    this.#write = write;
    this.#values = columns.map(() => []);
    const columnData = columns.map((column) => ({ ...column, nullable: true, data: [] }));
    const schema = schemaFromColumnData({ columnData });
    this.#writer = new ParquetWriter({ writer: this.#bytes, schema, createdBy: 'kvasir' });
  }

  /** Adds a row. @param row (columns) */
  add(row: readonly Value[]): void {
    for (const [i, { type }] of this.#columns.entries()) {
      const value = row[i];
      this.#values[i]?.push(type === 'INT64' && typeof value === 'number' ? BigInt(value) : value);
    }
    if (this.#values[0]?.length === groupRows) this.#writeGroup();
  }

  /** Writes the rows that are left, and the footer. */
  close(): void {
    if (this.#values[0]?.length !== 0) this.#writeGroup();
    this.#writer.finish();
    this.#flush();
  }

  #writeGroup(): void {
    const columnData = this.#columns.map(({ name }, i) => ({ name, data: this.#values[i] ?? [] }));
    this.#writer.write({ columnData, rowGroupSize: groupRows });
    this.#values = this.#columns.map(() => []);
    this.#flush();
  }

  #flush(): void {
    this.#write(new Uint8Array(this.#bytes.buffer, 0, this.#bytes.index));
    this.#bytes.index = 0;
  }
}
