// Sequential little-endian reads of a file through a small window. Every length is checked against the bytes that
// remain.
import { isUtf8 } from 'node:buffer';
import { ModelFileError } from './errors.ts';
import type { RandomAccessFile } from './random-access-file.ts';

const windowBytes = 1 << 18;

export class ByteCursor {
  readonly file: RandomAccessFile;
  #window: Buffer = Buffer.alloc(0);
  #windowStart = 0;
  #offset: number;

  constructor(file: RandomAccessFile, offset = 0) {
    this.file = file;
    this.#offset = offset;
  }

  get offset(): number {
    return this.#offset;
  }

  get remaining(): number {
    return this.file.size - this.#offset;
  }

  skip(byteLength: number, what: string): void {
    this.#require(byteLength, what);
    this.#offset += byteLength;
  }

  u8(what: string): number {
    const at = this.#take(1, what);
    return this.#window.readUInt8(at);
  }

  i8(what: string): number {
    const at = this.#take(1, what);
    return this.#window.readInt8(at);
  }

  u16(what: string): number {
    const at = this.#take(2, what);
    return this.#window.readUInt16LE(at);
  }

  i16(what: string): number {
    const at = this.#take(2, what);
    return this.#window.readInt16LE(at);
  }

  u32(what: string): number {
    const at = this.#take(4, what);
    return this.#window.readUInt32LE(at);
  }

  i32(what: string): number {
    const at = this.#take(4, what);
    return this.#window.readInt32LE(at);
  }

  f32(what: string): number {
    const at = this.#take(4, what);
    return this.#window.readFloatLE(at);
  }

  f64(what: string): number {
    const at = this.#take(8, what);
    return this.#window.readDoubleLE(at);
  }

  u64(what: string): bigint {
    const at = this.#take(8, what);
    return this.#window.readBigUInt64LE(at);
  }

  i64(what: string): bigint {
    const at = this.#take(8, what);
    return this.#window.readBigInt64LE(at);
  }

  /**
   * A 64-bit count of items that take at least `itemBytes` each.
   * @throws ModelFileError when the rest of the file cannot hold them
   */
  count(itemBytes: number, what: string): number {
    const start = this.#take(8, what);
    const low = this.#window.readUInt32LE(start);
    const high = this.#window.readUInt32LE(start + 4);
    const count = high * 2 ** 32 + low;
    // A product above 2^53 is rounded, but stays far above any file's size.
    if (count * itemBytes > this.remaining) {
      const claim = this.#window.readBigUInt64LE(start);
      this.#offset -= 8;
      const unit = itemBytes === 1 ? 'bytes' : `items of at least ${itemBytes} bytes`;
      this.fail(`${what} claims ${claim} ${unit} where the file has ${this.remaining - 8} bytes left`);
    }
    return count;
  }

  /** A length-prefixed string of at most `bytesMax` bytes of valid UTF-8. */
  string(bytesMax: number, what: string): string {
    const start = this.#offset;
    const byteLength = this.count(1, what);
    if (byteLength > bytesMax) {
      this.#offset = start;
      this.fail(`${what} has ${byteLength} bytes, more than the ${bytesMax} allowed`);
    }
    const at = this.#offset;
    this.#offset += byteLength;
    const inWindow = at >= this.#windowStart && at + byteLength <= this.#windowStart + this.#window.byteLength;
    const bytes = inWindow
      ? this.#window.subarray(at - this.#windowStart, at - this.#windowStart + byteLength)
      : this.file.read(at, byteLength);
    const text = decodeUtf8(bytes, 0, byteLength);
    if (text === undefined)
      throw new ModelFileError({ file: this.file.path, offset: at, reason: `${what} is not valid UTF-8` });
    return text;
  }

  fail(reason: string): never {
    throw new ModelFileError({ file: this.file.path, offset: this.#offset, reason });
  }

  #require(byteLength: number, what: string): void {
    if (byteLength > this.remaining) {
      this.fail(
        `${what} needs ${byteLength} bytes where the file has ${this.remaining} left: it is truncated or corrupt`,
      );
    }
  }

  /** Consumes the next `byteLength` bytes and returns their index in the window. */
  #take(byteLength: number, what: string): number {
    this.#require(byteLength, what);
    const at = this.#offset - this.#windowStart;
    if (at < 0 || at + byteLength > this.#window.byteLength) {
      this.#window = this.file.read(this.#offset, Math.min(windowBytes, this.remaining));
      this.#windowStart = this.#offset;
    }
    const index = this.#offset - this.#windowStart;
    this.#offset += byteLength;
    return index;
  }
}

/** The text of bytes[start, end), or undefined when they are not UTF-8. */
export function decodeUtf8(bytes: Buffer, start: number, end: number): string | undefined {
  const text = bytes.toString('utf8', start, end);
  // Decoding replaces invalid bytes, so the slow check runs only where a replacement character appears.
  if (text.includes('\ufffd') && !isUtf8(bytes.subarray(start, end))) return undefined;
  return text;
}
