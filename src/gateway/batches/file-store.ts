// Files of clients: inputs and outputs of batches. Bounded, in memory, and also in a folder if there is one.

import { z } from 'zod';
import { oneLine } from '../../util/one-line.ts';
import type { Listed } from '../forwarding/forwarding.ts';
import type { GatewayIds } from '../forwarding/gateway-ids.ts';
import type { DataFolder, Owners } from '../http/data-folder.ts';
import { ApiError } from '../http/errors.ts';
import type { Caller } from '../keys/caller.ts';

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
/** A batch writes answers and errors. */
const outputsOfBatch = 2;

export class FileStore {
  readonly #bytesMax: number;
  /** Undefined: files are lost when the process exits. */
  readonly #storage: Storage | undefined;
  readonly #ids: GatewayIds;
  readonly #files = new Map<string, StoredFile>();
  /** They count, and exist once they are on disk. */
  readonly #writing = new Set<StoredFile>();
  #bytes = 0;
  /** Of outputs that running batches will write. */
  readonly #reserved = new Map<string, number>();

  /** @param bytesMax limit of all files together */
  constructor(bytesMax: number, ids: GatewayIds, storage?: Storage) {
    this.#bytesMax = bytesMax;
    this.#ids = ids;
    this.#storage = storage;
    if (storage !== undefined) this.#restore(storage);
  }

  /** Stores an upload. @throws ApiError 429 without free capacity, or above a limit of the caller's key */
  async add(caller: Caller, { filename, bytes }: Pick<StoredFile, 'filename' | 'bytes'>): Promise<StoredFile> {
    this.#refuseAboveLimits(caller, bytes.length);
    this.#refuseAboveCapacity(1, bytes.length);
    return this.#store({ tenant: caller.name, filename, purpose: 'batch', bytes }, this.#ids.create('file-'));
  }

  /** Reserves capacity for the outputs of a batch. @throws ApiError 429 without free capacity */
  reserve(batch: string, bytes: number): void {
    this.#refuseAboveCapacity(outputsOfBatch, bytes);
    this.#reserved.set(batch, bytes);
  }

  /** The batch has written its outputs, or never will. */
  release(batch: string): void {
    this.#reserved.delete(batch);
  }

  /** Stores an output once. It has a reservation, so that no limit applies. @throws ApiError 503 if it cannot be written */
  async addOutput(file: Pick<StoredFile, 'tenant' | 'filename' | 'bytes'>, id: string): Promise<StoredFile> {
    return this.#files.get(id) ?? this.#store({ ...file, purpose: 'batch_output' }, id);
  }

  #refuseAboveLimits({ name, limits }: Caller, bytes: number): void {
    const own = [...this.list(name), ...[...this.#writing].filter(({ tenant }) => tenant === name)];
    const ownBytes = own.reduce((sum, file) => sum + file.bytes.length, bytes);
    const refused = (param: string, figures: string): ApiError =>
      new ApiError(429, `Cannot store file of '${name}': ${figures}: delete some`, { code: 'key_limit', param });
    if (own.length >= (limits.files ?? Number.POSITIVE_INFINITY))
      throw refused('files', `it has ${own.length} files, its key allows ${limits.files}`);
    if (ownBytes > (limits.fileBytes ?? Number.POSITIVE_INFINITY))
      throw refused('file_bytes', `${ownBytes} bytes with it, its key allows ${limits.fileBytes}`);
  }

  #refuseAboveCapacity(more: number, moreBytes: number): void {
    const files = this.#files.size + this.#writing.size + outputsOfBatch * this.#reserved.size + more;
    const writing = [...this.#writing].map((file) => file.bytes.length);
    const counted = [...this.#reserved.values(), ...writing];
    const bytes = counted.reduce((sum, each) => sum + each, this.#bytes + moreBytes);
    if (files <= filesMax && bytes <= this.#bytesMax) return;
    const figures = `${files} of ${filesMax} files, ${bytes} of ${this.#bytesMax} bytes with it`;
    throw new ApiError(429, `Cannot store file: no free capacity: ${figures}: delete some`, { code: 'no_room' });
  }

  async #store(file: Pick<StoredFile, 'tenant' | 'filename' | 'purpose' | 'bytes'>, id: string): Promise<StoredFile> {
    const stored = { ...file, id, createdS: Math.floor(Date.now() / 1000) };
    this.#writing.add(stored);
    try {
      if (this.#storage !== undefined) await this.#write(this.#storage, stored);
    } finally {
      this.#writing.delete(stored);
    }
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
    throw new ApiError(404, `Cannot find file '${oneLine(id, 128)}'`, { code: 'file_not_found' });
  }

  /** @throws ApiError 404, or 503 if it cannot be removed from the disk: a restarted gateway then has it again */
  async remove(id: string, tenant: string): Promise<void> {
    this.#bytes -= this.get(id, tenant).bytes.length;
    this.#files.delete(id);
    await this.#storage?.folder.remove(`${id}.json`);
    await this.#storage?.folder.remove(`${id}.bytes`);
  }

  /** A stored file exists once its description is written. */
  async #write({ folder, owners }: Storage, { bytes, tenant, ...file }: StoredFile): Promise<void> {
    await folder.write(`${file.id}.bytes`, bytes);
    try {
      await folder.write(`${file.id}.json`, JSON.stringify({ ...file, owner: owners.ownerOf(tenant) }));
    } catch (error) {
      // The description may be there, though its folder is not on disk.
      await Promise.allSettled(['.json', '.bytes'].map((suffix) => folder.remove(file.id + suffix)));
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
      return [{ ...file, tenant: owners.nameOf(owner), bytes }];
    });
    for (const file of restored.sort((a, b) => a.createdS - b.createdS)) this.#insert(file);
    // Bytes without a description are from a process that was killed between the two writes.
    folder.prune('.bytes', (name) => this.#files.has(name));
  }
}

export function describeFile({ id, filename, purpose, createdS, bytes }: StoredFile): Listed {
  const described = { object: 'file', bytes: bytes.length, filename, purpose, status: 'processed' };
  return { id, created_at: createdS, ...described };
}
