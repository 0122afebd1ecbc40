// Publish/subscribe messages by subject, and small key-value records, between the processes of one cluster.

/** Words joined by dots: letters, digits, `-` and `_`. A subscription may have `*` for any one word, and end in `>` for all that follow. */
export type Subject = string;

export interface Bus {
  /** Delivers to current subscribers, at most once, in order for each publisher. A message published while the connection is down is dropped. */
  publish(subject: Subject, payload: Uint8Array): void;
  /** The handler owns the payload. Returns a function that unsubscribes; messages already in flight may still be delivered after it. */
  subscribe(subject: Subject, handler: (payload: Uint8Array, subject: Subject) => void): () => void;
  /** Calls for every message on the subject, also for one without the token of the cluster; undefined: `subscribe` ignores none. */
  observe?(subject: Subject, onMessage: () => void): () => void;
  readonly records: Records;
  readonly snapshots: Snapshots;
  /** True if no record can be lost while any process runs; false if records may be lost with the disk of a server. */
  readonly durable: boolean;
  /** Resolves when the server has received all earlier publications and subscriptions. @throws Error if the connection is down or closed */
  flush(): Promise<void>;
  /** Calls `onChange` at once with whether the connection is up, and then with each change. Returns a function that ends the calls. */
  watchConnection(onChange: (up: boolean) => void): () => void;
  /** Sends earlier publications if possible, then ends all deliveries. */
  close(): Promise<void>;
}

export interface StoredRecord {
  readonly value: Uint8Array;
  /** Increases with every write of the record. */
  readonly revision: number;
}

export interface RejectedRecord {
  readonly value: Uint8Array;
  /** unsealed: it has no MAC. token: it has the MAC of another token, or was changed. replayed: it is older than one that was read. */
  readonly why: 'unsealed' | 'token' | 'replayed';
}

/** Key-value store that outlives its writers and a restart of the server. Keys are subjects without wildcards. */
export interface Records {
  read(key: Subject): Promise<StoredRecord | undefined>;
  /** The record that `read` ignores, if there is one; absent: `read` ignores none. */
  readRejected?(key: Subject): Promise<RejectedRecord | undefined>;
  /**
   * Compare-and-set: writes if the record still has that revision (undefined: if the record is absent). Returns the new revision, or undefined
   * if another writer came first. After a rejection the write may have happened: read again.
   */
  write(key: Subject, value: Uint8Array, revision: number | undefined): Promise<number | undefined>;
  /** Removes the record if it still has that revision. Returns whether it did. */
  remove(key: Subject, revision: number): Promise<boolean>;
}

/** Records that expire `snapshotsKeptMs` after their last write. Readers must work without them. Their keys are separate from those of `Records`. */
export interface Snapshots extends Records {
  /** Writes unconditionally. Returns the revision. */
  put(key: Subject, value: Uint8Array): Promise<number>;
}

export const snapshotsKeptMs = 3_600_000;

/** @throws Error for a subject that NATS refuses or interprets differently */
export function checkSubject(subject: Subject, wildcards: boolean): void {
  const words = subject.split('.');
  const valid = words.every((word, i) => {
    const isWildcard = word === '*' || (word === '>' && i === words.length - 1);
    return /^[\w-]+$/.test(word) || (wildcards && isWildcard);
  });
  if (!valid || subject.length > 200)
    throw new Error(`Cannot use the subject ${JSON.stringify(subject.slice(0, 250))}`);
}
