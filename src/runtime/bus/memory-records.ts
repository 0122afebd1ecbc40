// Records and snapshots of a bus inside one process: as its hub keeps them, and as its ends ask for them.
import { checkSubject, type Snapshots, type StoredRecord, type Subject } from './bus.ts';

/** Records, or snapshots. */
export type Bucket = 'records' | 'snapshots';

interface Key {
  readonly bucket: Bucket;
  readonly key: Subject;
}

export type RecordAsk =
  | ({ readonly kind: 'read' } & Key)
  | ({ readonly kind: 'write'; readonly value: Uint8Array; readonly revision: number | undefined } & Key)
  | ({ readonly kind: 'put'; readonly value: Uint8Array } & Key)
  | ({ readonly kind: 'remove'; readonly revision: number } & Key);

interface Kept extends StoredRecord {
  readonly writtenMs: number;
}

export class MemoryRecords {
  readonly #records = new Map<Subject, Kept>();
  readonly #keptMs: number;
  #revision = 0;

  /** @param keptMs what was written before is forgotten */
  constructor(keptMs: number) {
    this.#keptMs = keptMs;
  }

  answer(ask: RecordAsk, nowMs: number): StoredRecord | number | boolean | undefined {
    const { kind, key } = ask;
    for (const [old, { writtenMs }] of this.#records) {
      if (nowMs - writtenMs < this.#keptMs) break;
      this.#records.delete(old);
    }
    const record = this.#records.get(key);
    if (kind === 'read') return record && { value: record.value, revision: record.revision };
    if (kind === 'put') return this.#put(key, ask.value, nowMs);
    const isOther = record?.revision !== ask.revision;
    if (kind === 'remove') return !isOther && this.#records.delete(key);
    return isOther ? undefined : this.#put(key, ask.value, nowMs);
  }

  #put(key: Subject, value: Uint8Array, writtenMs: number): number {
    // Those that were written last are last.
    this.#records.delete(key);
    this.#records.set(key, { value, revision: ++this.#revision, writtenMs });
    return this.#revision;
  }
}

/** @param ask brings it to the hub, and back what was answered */
export function askedRecords(bucket: Bucket, ask: (ask: RecordAsk) => Promise<unknown>): Snapshots {
  const asks = async <T>(asked: RecordAsk): Promise<T> => {
    checkSubject(asked.key, false);
    return (await ask(asked)) as T;
  };
  return {
    read: (key) => asks<StoredRecord | undefined>({ kind: 'read', bucket, key }),
    write: (key, value, revision) =>
      asks<number | undefined>({ kind: 'write', bucket, key, value: tight(value), revision }),
    put: (key, value) => asks<number>({ kind: 'put', bucket, key, value: tight(value) }),
    remove: (key, revision) => asks<boolean>({ kind: 'remove', bucket, key, revision }),
  };
}

/** Cloned with nothing beside it: a view's whole buffer would go with it. */
export function tight(bytes: Uint8Array): Uint8Array {
  return bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes);
}
