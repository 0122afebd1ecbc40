// A folder of data that outlives the gateway. Writes are atomic: a killed process leaves the old file or the new one.
import {
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { ApiError } from './errors.ts';

const partSuffix = '.part';
const newline = 10;

/** Only the user of the process may read what clients sent. */
const folderMode = 0o700;
const fileMode = 0o600;

/** Files of one kind, by name. The folder has a single user. */
export class DataFolder {
  readonly #path: string;
  readonly #log: (message: string) => void;
  /** The last append to each log: appends to one log follow each other. */
  readonly #appends = new Map<string, Promise<void>>();

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
    return new DataFolder(join(this.#path, name), this.#log);
  }

  /** Names of the files with this suffix, without the suffix. */
  names(suffix: string): readonly string[] {
    return readdirSync(this.#path).flatMap((name) => (name.endsWith(suffix) ? [name.slice(0, -suffix.length)] : []));
  }

  /** The file is on disk when this returns. @throws ApiError 503 if it cannot be written */
  write(name: string, bytes: Uint8Array | string): void {
    const part = join(this.#path, name + partSuffix);
    try {
      writeWhole(part, bytes);
      renameSync(part, join(this.#path, name));
      syncFolder(this.#path);
    } catch (error) {
      rmSync(part, { force: true });
      const why = error instanceof Error && 'code' in error ? String(error.code) : String(error);
      this.#log(`Cannot write ${join(this.#path, name)}: ${why}`);
      throw new ApiError(503, `Cannot store data: the data folder cannot be written: ${why}`, { code: 'not_kept' });
    }
  }

  /** Appends a line to a log; it is on disk when the promise resolves. @throws Error of the file system */
  append(name: string, line: string): Promise<void> {
    const before = this.#appends.get(name) ?? Promise.resolve();
    const appended = before.catch(() => {}).then(() => appendSynced(join(this.#path, name), `${line}\n`));
    this.#appends.set(name, appended);
    return appended.finally(() => {
      if (this.#appends.get(name) === appended) this.#appends.delete(name);
    });
  }

  /** The complete lines of a log. Cuts off an incomplete last line, so that appending continues after the others. */
  lines(name: string): readonly string[] {
    const bytes = this.read(name);
    if (bytes === undefined) return [];
    const whole = bytes.lastIndexOf(newline) + 1;
    if (whole < bytes.length) truncateSync(join(this.#path, name), whole);
    return bytes.toString('utf8', 0, whole).split('\n').slice(0, -1);
  }

  /** Undefined if there is none. */
  read(name: string): Buffer | undefined {
    try {
      return readFileSync(join(this.#path, name));
    } catch {
      return undefined;
    }
  }

  remove(name: string): void {
    rmSync(join(this.#path, name), { force: true });
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

function writeWhole(path: string, bytes: Uint8Array | string): void {
  const file = openSync(path, 'w', fileMode);
  try {
    writeFileSync(file, bytes);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

async function appendSynced(path: string, text: string): Promise<void> {
  const file = await open(path, 'a', fileMode);
  try {
    await file.appendFile(text);
    await file.datasync();
  } finally {
    await file.close();
  }
}

/** A renamed file survives a loss of power once its folder is on disk. */
function syncFolder(path: string): void {
  const folder = openSync(path, 'r');
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/** Maps tenants to the owners of stored data and back: the name of a key may change. */
export interface Owners {
  ownerOf(tenant: string): string;
  nameOf(owner: string): string;
}
