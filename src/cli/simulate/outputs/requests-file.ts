// `kvasir simulate --requests-out`: a record of each request in the order in which they end, as CSV, JSON lines or Parquet.
import { closeSync, openSync, writeSync } from 'node:fs';
import type { InstanceIndex } from '../../../core/protocol/ids.ts';
import { type RequestRecord, RequestRecorder } from '../../../sim/report/request-recorder.ts';
import { ParquetFile, type ParquetType } from './parquet-file.ts';

/** The columns and their types, in this order. */
const types = {
  ...{ index: 'INT64', arrivalMs: 'DOUBLE', sloClass: 'STRING', tenant: 'STRING', session: 'INT64', turn: 'INT64' },
  ...{ priority: 'INT64', batch: 'BOOLEAN' },
  ...{ promptTokens: 'INT64', outputTokens: 'INT64', outcome: 'STRING', returns: 'BOOLEAN', instance: 'STRING' },
  ...{ decodeInstance: 'STRING', attempts: 'INT64', preemptions: 'INT64', cachedTokens: 'INT64' },
  ...{ fetchedFrom: 'STRING', fetchedTokens: 'INT64', hitBlocks: 'INT64', neverSeenBlocks: 'INT64' },
  ...{ evictedBlocks: 'INT64', elsewhereBlocks: 'INT64', partialBlocks: 'INT64', queueMs: 'DOUBLE' },
  ...{ ttftMs: 'DOUBLE', tbtMs: 'DOUBLE', tpotMs: 'DOUBLE', e2eMs: 'DOUBLE' },
  ...{ predictedTtftMs: 'DOUBLE', predictedTbtMs: 'DOUBLE' },
} as const satisfies Readonly<Record<keyof RequestRecord, ParquetType>>;

const columns = Object.keys(types) as readonly (keyof RequestRecord)[];

/** Characters that are collected before they are written. */
const pieceLength = 2 ** 16;

export class RequestsFile {
  readonly recorder: RequestRecorder;
  readonly #file: number;
  readonly #instances: readonly string[];
  readonly #parquet: ParquetFile | undefined;
  #pending = '';

  /** @param path its ending determines the format @param instances names by index @throws Error if the file cannot be written */
  constructor(path: string, instances: readonly string[]) {
    this.#instances = instances;
    this.#file = openSync(path, 'w');
    const isJson = path.endsWith('.jsonl');
    if (path.endsWith('.parquet')) {
      const typed = columns.map((name) => ({ name, type: types[name] }));
      this.#parquet = new ParquetFile(typed, (bytes) => writeFully(this.#file, bytes));
    } else if (!isJson) this.#add(columns.join(','));
    this.recorder = new RequestRecorder((record) => {
      if (this.#parquet !== undefined) this.#parquet.add(this.#valuesOf(record));
      else this.#add(isJson ? this.#jsonOf(record) : this.#rowOf(record));
    });
  }

  close(): void {
    this.#flush();
    this.#parquet?.close();
    closeSync(this.#file);
  }

  #add(line: string): void {
    this.#pending += `${line}\n`;
    if (this.#pending.length >= pieceLength) this.#flush();
  }

  #flush(): void {
    writeFully(this.#file, Buffer.from(this.#pending));
    this.#pending = '';
  }

  #jsonOf(record: RequestRecord): string {
    return JSON.stringify({ ...record, ...this.#namesOf(record) });
  }

  #rowOf(record: RequestRecord): string {
    return this.#valuesOf(record)
      .map((value) => quoted(String(value ?? '')))
      .join(',');
  }

  #valuesOf(record: RequestRecord) {
    const named = { ...record, ...this.#namesOf(record) };
    return columns.map((name) => named[name]);
  }

  #namesOf({ instance, decodeInstance, fetchedFrom }: RequestRecord) {
    const nameOf = (index: InstanceIndex | undefined) => (index === undefined ? undefined : this.#instances[index]);
    return {
      instance: nameOf(instance),
      decodeInstance: nameOf(decodeInstance),
      fetchedFrom: nameOf(fetchedFrom),
    };
  }
}

function quoted(text: string): string {
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** A pipe may accept a part of the bytes, or none until its reader has read. */
export function writeFully(file: number, bytes: Uint8Array, write: typeof writePart = writePart): void {
  for (let from = 0; from < bytes.length; ) {
    const written = write(file, bytes, from);
    if (written === 0) Atomics.wait(pause, 0, 0, 1);
    from += written;
  }
}

const pause = new Int32Array(new SharedArrayBuffer(4));

/** @returns the number of bytes that the file accepted */
function writePart(file: number, bytes: Uint8Array, from: number): number {
  try {
    return writeSync(file, bytes, from);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return 0;
    throw error;
  }
}
