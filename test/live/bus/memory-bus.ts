// A bus inside one process, which holds the contract of NATS without a server: for tests of what goes over it.
import {
  type Bus,
  checkSubject,
  type Records,
  type Snapshots,
  type StoredRecord,
  type Subject,
} from '../../../src/live/bus/bus.ts';

interface Listener {
  readonly words: readonly string[];
  readonly hear: (payload: Uint8Array, subject: Subject) => void;
  gone: boolean;
}

/** What all buses of a process share. */
export class MemoryHub {
  readonly #listeners = new Set<Listener>();
  readonly records = new MemoryRecords();
  readonly snapshots = new MemoryRecords();

  connect(): Bus {
    return new MemoryBus(this);
  }

  /** Listeners hear after the sender's turn, as they would of another process. */
  deliver(subject: Subject, payload: Uint8Array): void {
    const words = subject.split('.');
    for (const listener of this.#listeners) {
      if (!matches(listener.words, words)) continue;
      const own = payload.slice();
      queueMicrotask(() => {
        if (!listener.gone) listener.hear(own, subject);
      });
    }
  }

  add(listener: Listener): void {
    this.#listeners.add(listener);
  }

  remove(listener: Listener): void {
    listener.gone = true;
    this.#listeners.delete(listener);
  }
}

class MemoryRecords {
  readonly #records = new Map<Subject, StoredRecord>();
  #revision = 0;

  read(key: Subject): StoredRecord | undefined {
    const record = this.#records.get(key);
    return record && { ...record, value: record.value.slice() };
  }

  write(key: Subject, value: Uint8Array, revision: number | undefined): number | undefined {
    return this.#records.get(key)?.revision === revision ? this.put(key, value) : undefined;
  }

  put(key: Subject, value: Uint8Array): number {
    this.#records.set(key, { value: value.slice(), revision: ++this.#revision });
    return this.#revision;
  }

  remove(key: Subject, revision: number): boolean {
    return this.#records.get(key)?.revision === revision && this.#records.delete(key);
  }
}

class MemoryBus implements Bus {
  readonly records: Records;
  readonly snapshots: Snapshots;
  readonly #hub: MemoryHub;
  readonly #listeners = new Set<Listener>();
  readonly #watchers = new Set<(up: boolean) => void>();
  #closed = false;

  constructor(hub: MemoryHub) {
    this.#hub = hub;
    this.records = this.#open(hub.records);
    this.snapshots = this.#open(hub.snapshots);
  }

  #open(records: MemoryRecords): Snapshots {
    const at = (key: Subject): MemoryRecords => {
      checkSubject(key, false);
      if (this.#closed) throw new Error('Cannot use the bus: it is closed');
      return records;
    };
    return {
      read: async (key) => at(key).read(key),
      write: async (key, value, revision) => at(key).write(key, value, revision),
      put: async (key, value) => at(key).put(key, value),
      remove: async (key, revision) => at(key).remove(key, revision),
    };
  }

  publish(subject: Subject, payload: Uint8Array): void {
    checkSubject(subject, false);
    if (!this.#closed) this.#hub.deliver(subject, payload);
  }

  subscribe(subject: Subject, hear: Listener['hear']): () => void {
    checkSubject(subject, true);
    const listener: Listener = { words: subject.split('.'), hear, gone: this.#closed };
    if (this.#closed) return () => {};
    this.#hub.add(listener);
    this.#listeners.add(listener);
    return () => {
      this.#listeners.delete(listener);
      this.#hub.remove(listener);
    };
  }

  async flush(): Promise<void> {
    if (this.#closed) throw new Error('Cannot flush the bus: it is closed');
  }

  watch(tell: (up: boolean) => void): () => void {
    this.#watchers.add(tell);
    tell(!this.#closed);
    return () => this.#watchers.delete(tell);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    // What was published before is heard first.
    await Promise.resolve();
    this.#closed = true;
    for (const listener of this.#listeners) this.#hub.remove(listener);
    for (const tell of this.#watchers) tell(false);
  }
}

function matches(pattern: readonly string[], words: readonly string[]): boolean {
  for (let i = 0; i < pattern.length; i++) {
    if (pattern[i] === '>') return words.length > i;
    if (i >= words.length || (pattern[i] !== '*' && pattern[i] !== words[i])) return false;
  }
  return pattern.length === words.length;
}
