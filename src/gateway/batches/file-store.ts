// Files of clients: inputs and outputs of batches. Bounded, in memory, and also in a folder if there is one.
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import type { DataFolder, Owners } from '../http/data-folder.ts';
import { ApiError } from '../http/errors.ts';

const storedSchema = z.object({
  id: z.string().regex(/^[\w-]{1,128}$/),
  owner: z.string(),
  filename: z.string(),
  purpose: z.enum(['batch', 'batch_output']),
  createdS: z.number(),
});

export interface StoredFile extends Omit<z.infer<typeof storedSchema>, 'owner'> {
  readonly tenant: string;
  readonly bytes: Uint8Array;
}

/** The folder of stored data and the owners in it. */
export interface Storage {
  readonly folder: DataFolder;
  readonly owners: Owners;
}

const filesMax = 256;

export class FileStore {
  readonly #bytesMax: number;
  /** Undefined: files are lost when the process exits. */
  readonly #storage: Storage | undefined;
  readonly #files = new Map<string, StoredFile>();
  #bytes = 0;

  /** @param bytesMax limit of all files together */
  constructor(bytesMax: number, storage?: Storage) {
    this.#bytesMax = bytesMax;
    this.#storage = storage;
    if (storage !== undefined) this.#restore(storage);
  }

  /** @param id of an output, which is written only once @throws ApiError 429 without free capacity */
  add(file: Pick<StoredFile, 'tenant' | 'filename' | 'purpose' | 'bytes'>, id = newId()): StoredFile {
    const known = this.#files.get(id);
    if (known !== undefined) return known;
    const bytes = this.#bytes + file.bytes.length;
    if (this.#files.size >= filesMax || bytes > this.#bytesMax) {
      const figures = `${this.#files.size} of ${filesMax} files, ${bytes} of ${this.#bytesMax} bytes with it`;
      throw new ApiError(429, `Cannot store file: no free capacity: ${figures}: delete some`, { code: 'no_room' });
    }
    const stored = { ...file, id, createdS: Math.floor(Date.now() / 1000) };
    if (this.#storage !== undefined) this.#write(this.#storage, stored);
    this.#insert(stored);
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
    this.#storage?.folder.remove(`${id}.json`);
    this.#storage?.folder.remove(`${id}.bytes`);
  }

  /** A stored file exists once its description is written. */
  #write({ folder, owners }: Storage, { bytes, tenant, ...file }: StoredFile): void {
    folder.write(`${file.id}.bytes`, bytes);
    try {
      folder.write(`${file.id}.json`, JSON.stringify({ ...file, owner: owners.ownerOf(tenant) }));
    } catch (error) {
      folder.remove(`${file.id}.bytes`);
      throw error;
    }
  }

  #insert(file: StoredFile): void {
    this.#files.set(file.id, file);
    this.#bytes += file.bytes.length;
  }

  #restore({ folder, owners }: Storage): void {
    const restored = folder.names('.json').flatMap((name) => {
      const about = folder.readAs(`${name}.json`, (json) => storedSchema.parse(JSON.parse(json.toString())));
      const bytes = folder.read(`${name}.bytes`);
      if (about === undefined || bytes === undefined) return [];
      const { owner, ...file } = about;
      return [{ ...file, tenant: owners.tenantOf(owner), bytes }];
    });
    for (const file of restored.sort((a, b) => a.createdS - b.createdS)) this.#insert(file);
    // Bytes without a description are from a process that was killed between the two writes.
    for (const name of folder.names('.bytes')) if (!this.#files.has(name)) folder.remove(`${name}.bytes`);
  }
}

function newId(): string {
  return `file-${randomUUID().replaceAll('-', '')}`;
}

export function describeFile({ id, filename, purpose, createdS, bytes }: StoredFile): object {
  return { id, object: 'file', bytes: bytes.length, created_at: createdS, filename, purpose, status: 'processed' };
}
