// What a gateway keeps over its restarts, in a folder: a file is there whole or as it was before, whenever the process is killed.
import {
  appendFileSync,
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
import { join } from 'node:path';
import { ApiError } from './errors.ts';

const partSuffix = '.part';
const newline = 10;

/** Files of one kind, by name. Whoever uses the folder has it alone. */
export class DataFolder {
  readonly #path: string;
  readonly #log: (message: string) => void;

  /** @param log told of what cannot be read @throws Error where it cannot be made, or written */
  constructor(path: string, log: (message: string) => void) {
    this.#path = path;
    this.#log = log;
    try {
      mkdirSync(path, { recursive: true });
      // What was being written when a process was killed was never there.
      for (const name of readdirSync(path)) if (name.endsWith(partSuffix)) rmSync(join(path, name));
    } catch (error) {
      throw new Error(`Cannot keep data at ${path}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  within(name: string): DataFolder {
    return new DataFolder(join(this.#path, name), this.#log);
  }

  /** Names of those that end so, without it. */
  names(suffix: string): readonly string[] {
    return readdirSync(this.#path).flatMap((name) => (name.endsWith(suffix) ? [name.slice(0, -suffix.length)] : []));
  }

  /** On the disk when this returns. @throws ApiError 503 where it cannot be */
  write(name: string, bytes: Uint8Array | string): void {
    const part = join(this.#path, name + partSuffix);
    try {
      writeWhole(part, bytes);
      renameSync(part, join(this.#path, name));
    } catch (error) {
      rmSync(part, { force: true });
      const why = error instanceof Error && 'code' in error ? String(error.code) : String(error);
      this.#log(`Cannot write ${join(this.#path, name)}: ${why}`);
      throw new ApiError(503, `Cannot keep it: the folder for data cannot be written: ${why}`, { code: 'not_kept' });
    }
  }

  /** A line of a journal, which survives this process; what was not whole is not read. */
  append(name: string, line: string): void {
    appendFileSync(join(this.#path, name), `${line}\n`);
  }

  /** The whole lines of a journal, which goes on behind them. */
  lines(name: string): readonly string[] {
    const bytes = this.read(name);
    if (bytes === undefined) return [];
    const whole = bytes.lastIndexOf(newline) + 1;
    if (whole < bytes.length) truncateSync(join(this.#path, name), whole);
    return bytes.toString('utf8', 0, whole).split('\n').slice(0, -1);
  }

  /** Undefined where there is none. */
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

  /** What one of its files says; undefined for what is none of ours, which stays where it is. */
  readAs<T>(name: string, read: (bytes: Buffer) => T): T | undefined {
    const bytes = this.read(name);
    if (bytes === undefined) return undefined;
    try {
      return read(bytes);
    } catch (error) {
      this.#log(
        `Ignored ${join(this.#path, name)}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`,
      );
      return undefined;
    }
  }
}

function writeWhole(path: string, bytes: Uint8Array | string): void {
  const file = openSync(path, 'w');
  try {
    writeFileSync(file, bytes);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

/** Whose something is, as it is written down and as it is known here: names of keys change with their order. */
export interface Owners {
  ownerOf(tenant: string): string;
  tenantOf(owner: string): string;
}
