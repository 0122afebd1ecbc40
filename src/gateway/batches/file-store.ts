// Files of clients: inputs and outputs of batches. Bounded; in a folder if there is one, else in memory.

import { z } from 'zod';
import { oneLine } from '../../util/one-line.ts';
import type { Listed } from '../forwarding/forwarding.ts';
import type { GatewayIds } from '../forwarding/gateway-ids.ts';
import type { DataFolder, Owners } from '../http/data-folder.ts';
import { ApiError } from '../http/errors.ts';
import { MemoryBytes, type StoredBytes } from '../http/stored-bytes.ts';
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
  readonly bytes: StoredBytes;
}

/** The input of a batch, which may run on when the file is removed. */
type KeptInput = Pick<StoredFile, 'id' | 'bytes'>;

/** A file to store. */
interface NewFile extends Pick<StoredFile, 'tenant' | 'filename'> {
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
  /** Files that are being written: limits count them, and clients find them once they are on disk. */
  readonly #writing = new Set<StoredFile>();
  #bytes = 0;
  /** By running batch: bytes of the outputs that it will write, and its input, which stays while it runs. */
  readonly #reserved = new Map<string, { readonly bytes: number; readonly input: KeptInput }>();

  /** @param bytesMax limit of all files together */
  constructor(bytesMax: number, ids: GatewayIds, storage?: Storage) {
    this.#bytesMax = bytesMax;
    this.#ids = ids;
    this.#storage = storage;
    if (storage !== undefined) this.#restore(storage);
  }

  /** Stores an upload. @throws ApiError 429 without free capacity, or above a limit of the caller's key */
  async add(caller: Caller, { filename, bytes }: Omit<NewFile, 'tenant'>): Promise<StoredFile> {
    this.#refuseAboveLimits(caller, bytes.length);
    this.#refuseAboveCapacity(1, bytes.length);
    return this.#store({ tenant: caller.name, filename, purpose: 'batch', bytes }, this.#ids.create('file-'));
  }

  /** Reserves capacity for the outputs of a batch, and its input. @throws ApiError 429 without free capacity */
  reserve(batch: string, bytes: number, input: KeptInput): void {
    this.#refuseAboveCapacity(outputsOfBatch, bytes);
    this.reserveAgain(batch, bytes, input);
  }

  /** Reserves for a batch that an earlier process accepted: no limit refuses it. */
  reserveAgain(batch: string, bytes: number, input: KeptInput): void {
    this.#reserved.set(batch, { bytes, input });
  }

  /** The batch has written its outputs, or never will. */
  release(batch: string): void {
    this.#reserved.delete(batch);
  }

  /** Stores an output once. It has a reservation, so that no limit applies. @throws ApiError 503 if it cannot be written */
  async addOutput(file: NewFile, id: string): Promise<StoredFile> {
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
    const reserved = [...this.#reserved.values()];
    // A removed file takes space until the last batch of it has ended.
    const inputs = new Map(reserved.map(({ input }) => [input.id, input]));
    const removed = [...inputs.values()].filter(({ id }) => !this.#files.has(id));
    const counted = [...reserved.map((each) => each.bytes), ...[...this.#writing, ...removed].map(sizeOf)];
    const bytes = counted.reduce((sum, each) => sum + each, this.#bytes + moreBytes);
    if (files <= filesMax && bytes <= this.#bytesMax) return;
    const figures = `${files} of ${filesMax} files, ${bytes} of ${this.#bytesMax} bytes with it`;
    throw new ApiError(429, `Cannot store file: no free capacity: ${figures}: delete some`, { code: 'no_room' });
  }

  async #store(file: NewFile & Pick<StoredFile, 'purpose'>, id: string): Promise<StoredFile> {
    let stored: StoredFile = {
      ...file,
      bytes: new MemoryBytes(file.bytes),
      id,
      createdS: Math.floor(Date.now() / 1000),
    };
    const writing = stored;
    this.#writing.add(writing);
    try {
      if (this.#storage !== undefined) stored = await this.#write(this.#storage, stored, file.bytes);
    } finally {
      this.#writing.delete(writing);
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

  /** @throws ApiError 404, 503 if it cannot be read */
  async content(id: string, tenant: string): Promise<Uint8Array<ArrayBuffer>> {
    const { bytes } = this.get(id, tenant);
    return bytes.read(0, bytes.length).catch((error: unknown) => {
      // It may have been removed meanwhile.
      this.get(id, tenant);
      throw error;
    });
  }

  /** @throws ApiError 404, or 503 if it cannot be removed from the disk: a restarted gateway then has it again */
  async remove(id: string, tenant: string): Promise<void> {
    this.#bytes -= this.get(id, tenant).bytes.length;
    this.#files.delete(id);
    await this.#storage?.folder.remove(`${id}.json`);
    await this.#storage?.folder.remove(`${id}.bytes`);
  }

  /** A stored file exists once its description is written. Returns it with its bytes on disk. */
  async #write({ folder, owners }: Storage, stored: StoredFile, bytes: Uint8Array): Promise<StoredFile> {
    const { bytes: _, tenant, ...file } = stored;
    await folder.write(`${file.id}.bytes`, bytes);
    try {
      await folder.write(`${file.id}.json`, JSON.stringify({ ...file, owner: owners.ownerOf(tenant) }));
    } catch (error) {
      // The description may be there, though its folder is not on disk.
      await Promise.allSettled(['.json', '.bytes'].map((suffix) => folder.remove(file.id + suffix)));
      throw error;
    }
    return { ...stored, bytes: folder.file(`${file.id}.bytes`, bytes.length) };
  }

  #insert(file: StoredFile): void {
    this.#files.set(file.id, file);
    this.#bytes += file.bytes.length;
  }

  #restore({ folder, owners }: Storage): void {
    const restored = folder.names('.json').flatMap((name) => {
      const about = folder.readAs(`${name}.json`, (json) => storedSchema.parse(JSON.parse(json.toString())));
      const bytes = folder.fileLeft(`${name}.bytes`);
      if (about === undefined || bytes === undefined) return [];
      const { owner, ...file } = about;
      return [{ ...file, tenant: owners.nameOf(owner), bytes }];
    });
    for (const file of restored.sort((a, b) => a.createdS - b.createdS)) this.#insert(file);
    // Bytes without a description are from a process that was killed between the two writes.
    folder.prune('.bytes', (name) => this.#files.has(name));
  }
}

function sizeOf({ bytes }: KeptInput): number {
  return bytes.length;
}

export function describeFile({ id, filename, purpose, createdS, bytes }: StoredFile): Listed {
  const described = { object: 'file', bytes: bytes.length, filename, purpose, status: 'processed' };
  return { id, created_at: createdS, ...described };
}
