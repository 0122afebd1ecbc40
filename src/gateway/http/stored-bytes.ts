// Bytes that clients have stored, in memory or on disk, which are read in pieces.
import { open } from 'node:fs/promises';
import { ApiError } from './errors.ts';

/** They never change. */
export interface StoredBytes {
  readonly length: number;
  /** The bytes from `start` to `end`, at most `length`. @throws ApiError 503 if they cannot be read */
  read(start: number, end: number): Promise<Uint8Array<ArrayBuffer>>;
}

export class MemoryBytes implements StoredBytes {
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get length(): number {
    return this.#bytes.length;
  }

  async read(start: number, end: number): Promise<Uint8Array<ArrayBuffer>> {
    return Uint8Array.from(this.#bytes.subarray(start, end));
  }
}

/** A file. It is open only during a read. */
export class FileBytes implements StoredBytes {
  readonly path: string;
  readonly length: number;

  constructor(path: string, length: number) {
    this.path = path;
    this.length = length;
  }

  read(start: number, end: number): Promise<Uint8Array<ArrayBuffer>> {
    return readRange(this.path, start, end).catch((error: unknown) => {
      throw new ApiError(503, `Cannot read stored data: ${codeOf(error)}`, { code: 'not_kept' });
    });
  }
}

/** The error code of the system, or the error as text. */
export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : String(error);
}

async function readRange(path: string, start: number, end: number): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(end - start);
  const file = await open(path, 'r');
  try {
    for (let at = 0; at < bytes.length; ) {
      const { bytesRead } = await file.read(bytes, at, bytes.length - at, start + at);
      if (bytesRead === 0) throw new Error(`the file ends at byte ${start + at}, before byte ${end}`);
      at += bytesRead;
    }
  } finally {
    await file.close();
  }
  return bytes;
}
