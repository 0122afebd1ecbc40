// Records with a MAC under the cluster token and a number: one that another client of the server wrote counts as absent, and is overwritten.
import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Records, RejectedRecord, Snapshots, StoredRecord, Subject } from './bus.ts';

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
    const opened = stored && this.#open(key, stored);
    return typeof opened === 'string' ? undefined : opened;
  }

  async readRejected(key: Subject): Promise<RejectedRecord | undefined> {
    const stored = await this.inner.read(key);
    if (stored === undefined) return undefined;
    const opened = this.#open(key, stored);
    return typeof opened === 'string' ? { value: stored.value, why: opened } : undefined;
  }

  async write(key: Subject, value: Uint8Array, revision: number | undefined): Promise<number | undefined> {
    const sealed = this.seal(key, value);
    const written = await this.inner.write(key, sealed, revision);
    if (written !== undefined || revision !== undefined) return written;
    const stored = await this.inner.read(key);
    const isRejected = stored !== undefined && typeof this.#open(key, stored) === 'string';
    return isRejected ? this.inner.write(key, sealed, stored.revision) : undefined;
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

  #open(key: Subject, { value: sealed, revision }: StoredRecord): StoredRecord | RejectedRecord['why'] {
    if (isUnsealed(sealed)) return 'unsealed';
    const bytes = Buffer.from(sealed.buffer, sealed.byteOffset, sealed.byteLength);
    const mac = this.#macOf(key, bytes.subarray(0, -macBytes)).subarray(0, macBytes);
    if (!timingSafeEqual(mac, bytes.subarray(-macBytes))) return 'token';
    const number = bytes.readDoubleLE(bytes.length - tailBytes);
    const highest = this.#highest.get(key) ?? 0;
    if (number < highest - replayMs) return 'replayed';
    this.#highest.set(key, Math.max(highest, number));
    return { value: new Uint8Array(bytes.subarray(0, -tailBytes)), revision };
  }

  #macOf(key: Subject, bytes: Buffer): Buffer {
    return createHmac('sha256', this.#secrets.key).update(`record ${this.#bucket}\0${key}\0`).update(bytes).digest();
  }
}

/** Earlier releases store a JSON head behind its length, and nothing more. */
function isUnsealed(bytes: Uint8Array): boolean {
  if (bytes.length < tailBytes) return true;
  return new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true) === bytes.length - 4;
}

export class AuthenticatedSnapshots extends AuthenticatedRecords<Snapshots> implements Snapshots {
  put(key: Subject, value: Uint8Array): Promise<number> {
    return this.inner.put(key, this.seal(key, value));
  }
}
