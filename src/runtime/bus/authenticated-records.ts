// Records with a MAC under the cluster token and a number: one that another client of the server wrote counts as absent, and is overwritten.
import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Records, Snapshots, StoredRecord, Subject } from './bus.ts';

/** Behind the value: readers of earlier releases ignore them, and find the versions of the record. */
const [numberBytes, macBytes] = [8, 16];
const tailBytes = numberBytes + macBytes;
/** A record this much older than one that was read is a replay. Clocks of hosts differ by less. */
const replayMs = 60_000;

export interface RecordSecrets {
  readonly key: Buffer;
  /** Wall-clock time in milliseconds. */
  readonly now: () => number;
}

export class AuthenticatedRecords<Inner extends Records = Records> implements Records {
  protected readonly inner: Inner;
  readonly #bucket: string;
  readonly #secrets: RecordSecrets;
  /** By key: the highest number that was read or written. */
  readonly #highest = new Map<Subject, number>();

  /** @param bucket its name is under the MAC */
  constructor(inner: Inner, bucket: string, secrets: RecordSecrets) {
    this.inner = inner;
    this.#bucket = bucket;
    this.#secrets = secrets;
  }

  async read(key: Subject): Promise<StoredRecord | undefined> {
    const stored = await this.inner.read(key);
    return stored && this.#open(key, stored);
  }

  /** True if there is a record without the token, or a replayed one. */
  async isForeign(key: Subject): Promise<boolean> {
    const stored = await this.inner.read(key);
    return stored !== undefined && this.#open(key, stored) === undefined;
  }

  async write(key: Subject, value: Uint8Array, revision: number | undefined): Promise<number | undefined> {
    const sealed = this.seal(key, value);
    const written = await this.inner.write(key, sealed, revision);
    if (written !== undefined || revision !== undefined) return written;
    const stored = await this.inner.read(key);
    const isAbsent = stored === undefined || this.#open(key, stored) !== undefined;
    return isAbsent ? undefined : this.inner.write(key, sealed, stored.revision);
  }

  remove(key: Subject, revision: number): Promise<boolean> {
    return this.inner.remove(key, revision);
  }

  protected seal(key: Subject, value: Uint8Array): Uint8Array {
    const bytes = Buffer.allocUnsafe(value.length + tailBytes);
    bytes.set(value);
    const number = Math.max(this.#secrets.now(), (this.#highest.get(key) ?? 0) + 1);
    this.#highest.set(key, number);
    bytes.writeDoubleLE(number, value.length);
    this.#macOf(key, bytes.subarray(0, -macBytes)).copy(bytes, value.length + numberBytes, 0, macBytes);
    return new Uint8Array(bytes);
  }

  #open(key: Subject, { value: sealed, revision }: StoredRecord): StoredRecord | undefined {
    if (sealed.length < tailBytes) return undefined;
    const bytes = Buffer.from(sealed.buffer, sealed.byteOffset, sealed.byteLength);
    const mac = this.#macOf(key, bytes.subarray(0, -macBytes)).subarray(0, macBytes);
    if (!timingSafeEqual(mac, bytes.subarray(-macBytes))) return undefined;
    const number = bytes.readDoubleLE(bytes.length - tailBytes);
    const highest = this.#highest.get(key) ?? 0;
    if (number < highest - replayMs) return undefined;
    this.#highest.set(key, Math.max(highest, number));
    return { value: new Uint8Array(bytes.subarray(0, -tailBytes)), revision };
  }

  #macOf(key: Subject, bytes: Buffer): Buffer {
    return createHmac('sha256', this.#secrets.key).update(`record ${this.#bucket}\0${key}\0`).update(bytes).digest();
  }
}

export class AuthenticatedSnapshots extends AuthenticatedRecords<Snapshots> implements Snapshots {
  put(key: Subject, value: Uint8Array): Promise<number> {
    return this.inner.put(key, this.seal(key, value));
  }
}
