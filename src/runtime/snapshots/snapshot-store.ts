// Copies of what instances hold, in the store: each written in parts by its own instance, and read by whoever has to know.
import { createHash } from 'node:crypto';
import type { Snapshots, Subject } from '../bus/bus.ts';
import type { KvSnapshot } from '../threads/thread-protocol.ts';
import { encode } from '../wire/codec.ts';
import { encodeHead, partsMax, readAnyHead, readBlocks, readHead, type SnapshotHead } from '../wire/stored-snapshot.ts';

/** Of a part: a quarter of what NATS takes in one message. */
const partBytes = 256 * 1024;
/** Instances keep no copy that is larger. */
export const snapshotBytesMax = partsMax * partBytes;
/** A copy that was overwritten while it was read is read again. */
const triesMax = 3;

export type WriteResult = 'written' | 'unwritten' | 'replaced';

/** What one start of an instance writes. One call at a time. */
export class SnapshotWriter {
  readonly #snapshots: Snapshots;
  readonly #name: string;
  readonly #incarnation: number;
  /** Revisions of parts that it has written, by their keys. */
  readonly #parts = new Map<Subject, number>();
  #side = 0;
  #revision: number | undefined;
  #ours = false;

  constructor(snapshots: Snapshots, name: string, incarnation: number) {
    this.#snapshots = snapshots;
    this.#name = name;
    this.#incarnation = incarnation;
  }

  /** The copy before it can be read until this one can. @throws Error where the store cannot be reached */
  async write(snapshot: KvSnapshot): Promise<WriteResult> {
    if (!this.#ours && !(await this.#findHead())) return 'replaced';
    const bytes = encode(snapshot);
    const side = 1 - this.#side;
    const sums: string[] = [];
    for (let at = 0; at < bytes.length; at += partBytes) {
      const part = bytes.subarray(at, at + partBytes);
      const key = partKey(this.#name, side, sums.length);
      this.#parts.set(key, await this.#snapshots.put(key, part));
      sums.push(sumOf(part));
    }
    return this.#writeHead({ incarnation: this.#incarnation, number: snapshot.number, side, sums });
  }

  /** Once more where the head is not the one that was written last: the store may have lost it. */
  async #writeHead(head: SnapshotHead): Promise<WriteResult> {
    const bytes = encodeHead(head);
    for (let tries = 0; tries < 2; tries++) {
      if (!this.#ours && !(await this.#findHead())) return 'replaced';
      // Until it is known to be: an answer may be lost.
      this.#ours = false;
      const revision = await this.#snapshots.write(headKey(this.#name), bytes, this.#revision);
      if (revision === undefined) continue;
      this.#ours = true;
      this.#revision = revision;
      this.#side = head.side;
      return 'written';
    }
    return 'unwritten';
  }

  /** Nobody finds it any more; what others have written under its name stays. @throws Error where the store cannot be reached */
  async remove(): Promise<void> {
    if (!this.#ours || this.#revision === undefined) return;
    this.#ours = false;
    const parts = [...this.#parts].map(([key, revision]) => this.#snapshots.remove(key, revision));
    await Promise.all([this.#snapshots.remove(headKey(this.#name), this.#revision), ...parts]);
  }

  /** False: it is that of a later start. */
  async #findHead(): Promise<boolean> {
    const stored = await this.#snapshots.read(headKey(this.#name));
    this.#revision = stored?.revision;
    if (stored === undefined) return true;
    const head = readable(() => readHead(stored.value));
    if (head !== undefined) this.#side = head.side;
    const incarnation = readable(() => readAnyHead(stored.value))?.incarnation ?? 0;
    return incarnation <= this.#incarnation;
  }
}

/** The copy of that start of an instance, as of that journal or a later one; undefined: there is none that is whole. @throws Error where the store cannot be reached */
export async function readSnapshot(
  snapshots: Snapshots,
  name: string,
  incarnation: number,
  number: number,
): Promise<KvSnapshot | undefined> {
  for (let tries = 0; tries < triesMax; tries++) {
    const stored = await snapshots.read(headKey(name));
    const head = stored && readable(() => readHead(stored.value));
    if (head?.incarnation !== incarnation || head.number < number) return undefined;
    const bytes = await readParts(snapshots, name, head);
    const snapshot = bytes && readable(() => readBlocks(bytes));
    if (snapshot !== undefined) return snapshot.number === head.number ? snapshot : undefined;
  }
  return undefined;
}

/** Undefined: one is gone, or another one. */
async function readParts(
  snapshots: Snapshots,
  name: string,
  { side, sums }: SnapshotHead,
): Promise<Uint8Array | undefined> {
  const parts: Uint8Array[] = [];
  for (const [i, sum] of sums.entries()) {
    const part = (await snapshots.read(partKey(name, side, i)))?.value;
    if (part === undefined || sumOf(part) !== sum) return undefined;
    parts.push(part);
  }
  return Buffer.concat(parts);
}

function headKey(name: string): Subject {
  return `head.${name}`;
}

function partKey(name: string, side: number, index: number): Subject {
  return `part.${name}.${side}.${index}`;
}

function sumOf(part: Uint8Array): string {
  return createHash('sha256').update(part).digest('base64url');
}

/** Anybody may have written it. */
function readable<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
