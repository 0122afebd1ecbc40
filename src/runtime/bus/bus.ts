// What the processes of one cluster tell each other, keys and values apart: messages by subject, and a few small records.

/** Words joined by dots: letters, digits, `-` and `_`. A subscription may have `*` for any one word, and end in `>` for all that follow. */
export type Subject = string;

export interface Bus {
  /** Heard by those who listen now, at most once, in order from one sender: who must know says it again. Nothing is kept while the connection is down. */
  publish(subject: Subject, payload: Uint8Array): void;
  /** The payload is the listener's own. Returns how to stop; what is under way may still be heard. */
  subscribe(subject: Subject, hear: (payload: Uint8Array, subject: Subject) => void): () => void;
  readonly records: Records;
  readonly snapshots: Snapshots;
  /** Records are there as long as anybody is; else they may be lost with the disk of a server while all go on. */
  readonly lasting: boolean;
  /** What was published and subscribed before has reached the server. @throws Error where the connection is down or closed */
  flush(): Promise<void>;
  /** Is the connection up? Told at once, and whenever it changes. Returns how to stop. */
  watch(tell: (up: boolean) => void): () => void;
  /** What was published before still leaves if it can; then nothing is heard any more. */
  close(): Promise<void>;
}

export interface StoredRecord {
  readonly value: Uint8Array;
  /** Greater with every write of the record. */
  readonly revision: number;
}

/** Outlive their writers and the server. Keys are subjects without wildcards. */
export interface Records {
  read(key: Subject): Promise<StoredRecord | undefined>;
  /**
   * Writes if the record still has that revision (undefined: if there is none). Returns the new revision, or undefined when somebody else was
   * faster. After a failure it may have been written all the same: read again.
   */
  write(key: Subject, value: Uint8Array, revision: number | undefined): Promise<number | undefined>;
  /** Removes it if it still has that revision; says whether it did. */
  remove(key: Subject, revision: number): Promise<boolean>;
}

/** Copies of what their writers have: forgotten `snapshotsKeptMs` after they were written, and whoever finds none can do without. Apart from records. */
export interface Snapshots extends Records {
  /** Writes it, whatever is there. Returns the revision. */
  put(key: Subject, value: Uint8Array): Promise<number>;
}

export const snapshotsKeptMs = 3_600_000;

/** @throws Error for what NATS would not take, or would take for something else */
export function checkSubject(subject: Subject, wildcards: boolean): void {
  const words = subject.split('.');
  const good = words.every((word, i) => {
    const wild = word === '*' || (word === '>' && i === words.length - 1);
    return /^[\w-]+$/.test(word) || (wildcards && wild);
  });
  if (!good || subject.length > 200) throw new Error(`Cannot use the subject ${JSON.stringify(subject.slice(0, 250))}`);
}
