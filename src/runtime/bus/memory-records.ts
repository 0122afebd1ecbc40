// Records and snapshots of a bus inside one process: the store in the hub, and the client in each endpoint.
import { assertNever } from '../../util/assert-never.ts';
import { checkSubject, type Snapshots, type StoredRecord, type Subject } from './bus.ts';

export type Bucket = 'records' | 'snapshots';

interface Key {
  readonly bucket: Bucket;
  readonly key: Subject;
}

export type RecordRequest =
  | ({ readonly kind: 'read' } & Key)
  | ({ readonly kind: 'write'; readonly value: Uint8Array; readonly revision: number | undefined } & Key)
  | ({ readonly kind: 'put'; readonly value: Uint8Array } & Key)
  | ({ readonly kind: 'remove'; readonly revision: number } & Key);

interface Entry extends StoredRecord {
  readonly writtenMs: number;
}

export class MemoryRecords {
  /** In the order of their last writes. */
  readonly #entries = new Map<Subject, Entry>();
  readonly #keptMs: number;
  #revision = 0;

  /** @param keptMs an entry expires so long after its last write */
  constructor(keptMs: number) {
    this.#keptMs = keptMs;
  }

  handle(request: RecordRequest, nowMs: number): StoredRecord | number | boolean | undefined {
    const { key } = request;
    for (const [old, { writtenMs }] of this.#entries) {
      if (nowMs - writtenMs < this.#keptMs) break;
      this.#entries.delete(old);
    }
    const entry = this.#entries.get(key);
    switch (request.kind) {
      case 'read':
        return entry && { value: entry.value, revision: entry.revision };
      case 'put':
        return this.#put(key, request.value, nowMs);
      case 'write':
        return entry?.revision === request.revision ? this.#put(key, request.value, nowMs) : undefined;
      case 'remove':
        return entry?.revision === request.revision && this.#entries.delete(key);
      default:
        return assertNever(request);
    }
  }

  #put(key: Subject, value: Uint8Array, writtenMs: number): number {
    // Moves the key to the end.
    this.#entries.delete(key);
    this.#entries.set(key, { value, revision: ++this.#revision, writtenMs });
    return this.#revision;
  }
}

/** @param send sends a request to the hub, and resolves with its result */
export function recordsClient(bucket: Bucket, send: (request: RecordRequest) => Promise<unknown>): Snapshots {
  const call = async <T>(request: RecordRequest): Promise<T> => {
    checkSubject(request.key, false);
    return (await send(request)) as T;
  };
  return {
    read: (key) => call<StoredRecord | undefined>({ kind: 'read', bucket, key }),
    write: (key, value, revision) =>
      call<number | undefined>({ kind: 'write', bucket, key, value: compact(value), revision }),
    put: (key, value) => call<number>({ kind: 'put', bucket, key, value: compact(value) }),
    remove: (key, revision) => call<boolean>({ kind: 'remove', bucket, key, revision }),
  };
}

/** The bytes alone in their buffer: cloning a view copies its whole buffer. */
export function compact(bytes: Uint8Array): Uint8Array {
  return bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes);
}
