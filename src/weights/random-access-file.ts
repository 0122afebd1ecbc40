// A file read by byte ranges. Each range is checked against the file's size before memory is allocated.
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { ModelFileError, reasonOf } from './errors.ts';

export class RandomAccessFile {
  readonly path: string;
  readonly size: number;
  #descriptor: number | undefined;

  constructor(path: string) {
    this.path = path;
    let descriptor: number | undefined;
    try {
      descriptor = openSync(path, 'r');
      const stat = fstatSync(descriptor);
      if (!stat.isFile()) throw new Error('not a regular file');
      this.size = stat.size;
      this.#descriptor = descriptor;
    } catch (error) {
      if (descriptor !== undefined) closeSync(descriptor);
      throw new ModelFileError({ file: path, reason: reasonOf(error) });
    }
  }

  /** Fills all of `into` from the file. @throws ModelFileError when the file has too few bytes */
  readInto(offset: number, into: Uint8Array): void {
    if (this.#descriptor === undefined)
      throw new ModelFileError({ file: this.path, offset, reason: 'the file was closed' });
    if (offset < 0 || offset + into.byteLength > this.size) {
      const reason = `${into.byteLength} bytes end past the file's ${this.size} bytes`;
      throw new ModelFileError({ file: this.path, offset, reason });
    }
    for (let done = 0; done < into.byteLength; ) {
      const got = this.#readSome(this.#descriptor, into, done, offset + done);
      if (got === 0) {
        throw new ModelFileError({
          file: this.path,
          offset: offset + done,
          reason: 'the file ends early: it shrank while it was read',
        });
      }
      done += got;
    }
  }

  /** A new buffer with the bytes. The range is checked before the allocation. */
  read(offset: number, byteLength: number): Buffer {
    if (offset < 0 || offset + byteLength > this.size) {
      const reason = `${byteLength} bytes end past the file's ${this.size} bytes`;
      throw new ModelFileError({ file: this.path, offset, reason });
    }
    const bytes = Buffer.allocUnsafeSlow(byteLength);
    this.readInto(offset, bytes);
    return bytes;
  }

  close(): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
    this.#descriptor = undefined;
  }

  #readSome(descriptor: number, into: Uint8Array, at: number, position: number): number {
    // One system call reads less than 2 GiB.
    const length = Math.min(into.byteLength - at, 2 ** 30);
    try {
      return readSync(descriptor, into, at, length, position);
    } catch (error) {
      throw new ModelFileError({ file: this.path, offset: position, reason: reasonOf(error) });
    }
  }
}
