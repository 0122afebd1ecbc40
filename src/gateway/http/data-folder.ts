// A folder of data that outlives the gateway. Writes are atomic: a killed process leaves the old file or the new one.
// Only reads at the start block the event loop: a slow disk delays no other request.
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, truncateSync } from 'node:fs';
import { copyFile, type FileHandle, link, open, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ApiError } from './errors.ts';
import { codeOf, FileBytes } from './stored-bytes.ts';

const partSuffix = '.part';
const newline = 10;
/** Errors of file systems that have no links, or not so many of one file. */
const withoutLinks = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK', 'EXDEV']);

/** Only the user of the process may read what clients sent. */
const folderMode = 0o700;
const fileMode = 0o600;

/**
 * Files of one kind, by name. The folder has a single user. Writes, appends and removals of one name take effect in the
 * order of their calls; a failed one does not fail those after it.
 */
export class DataFolder {
  readonly #path: string;
  readonly #log: (message: string) => void;
  /** The last change of each name that has one pending. */
  readonly #pending = new Map<string, Promise<void>>();
  readonly #inner: DataFolder[] = [];
  #isClosed = false;

  /** @param log receives a line for each unreadable file @throws Error if the folder cannot be created or written */
  constructor(path: string, log: (message: string) => void) {
    this.#path = path;
    this.#log = log;
    try {
      mkdirSync(path, { recursive: true, mode: folderMode });
      // A process that was killed during a write leaves a part.
      for (const name of readdirSync(path)) if (name.endsWith(partSuffix)) rmSync(join(path, name));
    } catch (error) {
      throw new Error(`Cannot keep data at ${path}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  within(name: string): DataFolder {
    const inner = new DataFolder(join(this.#path, name), this.#log);
    this.#inner.push(inner);
    return inner;
  }

  /** Refuses further changes, and resolves when the pending ones have ended. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.allSettled([...this.#pending.values(), ...this.#inner.map((inner) => inner.close())]);
  }

  /** Names of the files with this suffix, without the suffix. */
  names(suffix: string): readonly string[] {
    return readdirSync(this.#path).flatMap((name) => (name.endsWith(suffix) ? [name.slice(0, -suffix.length)] : []));
  }

  /** The file is on disk when the promise resolves. @throws ApiError 503 if it is not: the old or the new one is left */
  write(name: string, bytes: Uint8Array | string): Promise<void> {
    return this.#change(name, async (path) => {
      const part = path + partSuffix;
      try {
        await withFile(part, 'w', async (file) => {
          await file.writeFile(bytes);
          await file.sync();
        });
        await rename(part, path);
      } catch (error) {
        await rm(part, { force: true }).catch(() => {});
        throw error;
      }
      await this.#sync();
    });
  }

  /**
   * A further name of a file, which lasts when the other one is removed; it is on disk when the promise resolves.
   * @throws ApiError 503 if it cannot be written
   */
  link(name: string, file: FileBytes): Promise<void> {
    return this.#change(name, async (path) => {
      try {
        await link(file.path, path).catch(async (error: NodeJS.ErrnoException) => {
          if (!withoutLinks.has(error.code ?? '')) throw error;
          await copyFile(file.path, path);
          await withFile(path, 'r+', (copy) => copy.sync());
        });
      } catch (error) {
        await rm(path, { force: true }).catch(() => {});
        throw error;
      }
      await this.#sync();
    });
  }

  /** Appends a line to a log; it is on disk when the promise resolves. @throws ApiError 503 if it cannot be written */
  append(name: string, line: string): Promise<void> {
    return this.#change(name, (path) =>
      withFile(path, 'a', async (file) => {
        const isNew = (await file.stat()).size === 0;
        await file.appendFile(`${line}\n`);
        await file.datasync();
        if (isNew) await this.#sync();
      }),
    );
  }

  /** A file that does not exist counts as removed. @throws ApiError 503 if it cannot be removed */
  remove(name: string): Promise<void> {
    return this.#change(name, async (path) => {
      await rm(path, { force: true });
      await this.#sync();
    });
  }

  /** At the start, before the first change: removes the files of a suffix that are not to be kept. */
  prune(suffix: string, keeps: (name: string) => boolean): void {
    for (const name of this.names(suffix)) if (!keeps(name)) rmSync(join(this.#path, name + suffix), { force: true });
  }

  /** Runs the change after those of the same name before it. */
  #change(name: string, change: (path: string) => Promise<void>): Promise<void> {
    if (this.#isClosed)
      return Promise.reject(new ApiError(503, 'Cannot store data: the server stops', { code: 'not_kept' }));
    const path = join(this.#path, name);
    const before = this.#pending.get(name) ?? Promise.resolve();
    const changed = before
      .catch(() => {})
      .then(() => change(path))
      .catch((error: unknown) => {
        throw this.#failure(path, error);
      });
    this.#pending.set(name, changed);
    return changed.finally(() => {
      if (this.#pending.get(name) === changed) this.#pending.delete(name);
    });
  }

  #failure(path: string, error: unknown): ApiError {
    const why = codeOf(error);
    this.#log(`Cannot write ${path}: ${why}`);
    return new ApiError(503, `Cannot store data: the data folder cannot be written: ${why}`, { code: 'not_kept' });
  }

  /** A renamed or removed file stays so after a loss of power once its folder is on disk. */
  #sync(): Promise<void> {
    return withFile(this.#path, 'r', (folder) => folder.sync());
  }

  /** The complete lines of a log. Cuts off an incomplete last line, so that appending continues after the others. */
  lines(name: string): readonly string[] {
    const bytes = this.read(name);
    if (bytes === undefined) return [];
    const whole = bytes.lastIndexOf(newline) + 1;
    if (whole < bytes.length) truncateSync(join(this.#path, name), whole);
    return bytes.toString('utf8', 0, whole).split('\n').slice(0, -1);
  }

  /** The bytes of a file that has been written. */
  file(name: string, length: number): FileBytes {
    return new FileBytes(join(this.#path, name), length);
  }

  /** A file of an earlier process, at the start; undefined: there is none. */
  fileLeft(name: string): FileBytes | undefined {
    const length = statSync(join(this.#path, name), { throwIfNoEntry: false })?.size;
    return length === undefined ? undefined : this.file(name, length);
  }

  /** Undefined if there is none. */
  read(name: string): Buffer | undefined {
    try {
      return readFileSync(join(this.#path, name));
    } catch {
      return undefined;
    }
  }

  /** The parsed file; undefined for one that `parse` throws at, which is left in place. */
  readAs<T>(name: string, parse: (bytes: Buffer) => T): T | undefined {
    const bytes = this.read(name);
    if (bytes === undefined) return undefined;
    try {
      return parse(bytes);
    } catch (error) {
      this.#log(
        `Ignored ${join(this.#path, name)}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`,
      );
      return undefined;
    }
  }
}

async function withFile(path: string, flags: string, use: (file: FileHandle) => Promise<void>): Promise<void> {
  const file = await open(path, flags, fileMode);
  try {
    await use(file);
  } finally {
    await file.close();
  }
}

/** Maps tenants to the owners of stored data and back: the name of a key may change. */
export interface Owners {
  ownerOf(tenant: string): string;
  nameOf(owner: string): string;
}
