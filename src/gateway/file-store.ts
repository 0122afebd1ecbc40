// Files of clients: what batches read, and what they have written. In memory, and bounded.
import { randomUUID } from 'node:crypto';
import { ApiError } from './errors.ts';

export interface StoredFile {
  readonly id: string;
  readonly tenant: string;
  readonly filename: string;
  readonly purpose: 'batch' | 'batch_output';
  readonly createdS: number;
  readonly bytes: Uint8Array;
}

const filesMax = 256;

export class FileStore {
  readonly #bytesMax: number;
  readonly #files = new Map<string, StoredFile>();
  #bytes = 0;

  /** @param bytesMax of all files together */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** @throws ApiError 429 when there is no room: files are deleted by those who put them there */
  add(file: Pick<StoredFile, 'tenant' | 'filename' | 'purpose' | 'bytes'>): StoredFile {
    const bytes = this.#bytes + file.bytes.length;
    if (this.#files.size >= filesMax || bytes > this.#bytesMax) {
      const figures = `${this.#files.size} of ${filesMax} files, ${bytes} of ${this.#bytesMax} bytes with it`;
      throw new ApiError(429, `Cannot keep file: there is no room: ${figures}: delete some`, { code: 'no_room' });
    }
    const id = `file-${randomUUID().replaceAll('-', '')}`;
    const stored = { ...file, id, createdS: Math.floor(Date.now() / 1000) };
    this.#files.set(id, stored);
    this.#bytes = bytes;
    return stored;
  }

  list(tenant: string): readonly StoredFile[] {
    return [...this.#files.values()].filter((file) => file.tenant === tenant);
  }

  /** @throws ApiError 404 */
  get(id: string, tenant: string): StoredFile {
    const file = this.#files.get(id);
    if (file?.tenant === tenant) return file;
    throw new ApiError(404, `Cannot find file '${id.slice(0, 128)}'`, { code: 'file_not_found' });
  }

  remove(id: string, tenant: string): void {
    this.#bytes -= this.get(id, tenant).bytes.length;
    this.#files.delete(id);
  }
}

export function describeFile({ id, filename, purpose, createdS, bytes }: StoredFile): object {
  return { id, object: 'file', bytes: bytes.length, created_at: createdS, filename, purpose, status: 'processed' };
}
