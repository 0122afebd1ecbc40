// Snapshots of the caches of instances in the store: written in parts by each instance, and read by gateways.
import { createHash } from 'node:crypto';
import type { KvSnapshot } from '../../core/protocol/kv-events.ts';
import type { Snapshots, Subject } from '../bus/bus.ts';
import { encode } from '../wire/codec.ts';
import { encodeHead, partsMax, readAnyHead, readBlocks, readHead, type SnapshotHead } from '../wire/stored-snapshot.ts';

/** Size of a part: a quarter of the largest NATS message. */
const partBytes = 256 * 1024;
/** Largest snapshot that is stored, in bytes. */
export const snapshotBytesMax = partsMax * partBytes;
/** Reads of a snapshot that is overwritten meanwhile. */
const attemptsMax = 3;

export type WriteResult = 'written' | 'writeFailed' | 'replaced';

/** Writes the snapshots of one incarnation. Calls must not overlap. */
export class SnapshotWriter {
  readonly #snapshots: Snapshots;
  readonly #name: string;
  readonly #incarnation: number;
  /** Revisions of the written parts, by key. */
  readonly #parts = new Map<Subject, number>();
  #side = 0;
  #revision: number | undefined;
  #isOurs = false;

  constructor(snapshots: Snapshots, name: string, incarnation: number) {
    this.#snapshots = snapshots;
    this.#name = name;
    this.#incarnation = incarnation;
  }

  /** The previous snapshot stays readable until this one is complete. @throws Error if the store is unreachable */
  async write(snapshot: KvSnapshot): Promise<WriteResult> {
    if (!this.#isOurs && !(await this.#findHead())) return 'replaced';
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

  /** Retries once if the head has another revision than expected: the store may have lost it. */
  async #writeHead(head: SnapshotHead): Promise<WriteResult> {
    const bytes = encodeHead(head);
    for (let attempt = 0; attempt < 2; attempt++) {
      if (!this.#isOurs && !(await this.#findHead())) return 'replaced';
      // Unknown until the write is confirmed: the response may be lost.
      this.#isOurs = false;
      const revision = await this.#snapshots.write(headKey(this.#name), bytes, this.#revision);
      if (revision === undefined) continue;
      this.#isOurs = true;
      this.#revision = revision;
      this.#side = head.side;
      return 'written';
    }
    return 'writeFailed';
  }

  /** Removes this incarnation's snapshot; those of later incarnations stay. @throws Error if the store is unreachable */
  async remove(): Promise<void> {
    if (!this.#isOurs || this.#revision === undefined) return;
    this.#isOurs = false;
    const parts = [...this.#parts].map(([key, revision]) => this.#snapshots.remove(key, revision));
    await Promise.all([this.#snapshots.remove(headKey(this.#name), this.#revision), ...parts]);
  }

  /** False if the head belongs to a later incarnation. */
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

/** The snapshot of that incarnation, as of KV event batch `number` or a later one; undefined if there is no complete one. @throws Error if the store is unreachable */
export async function readSnapshot(
  snapshots: Snapshots,
  name: string,
  incarnation: number,
  number: number,
): Promise<KvSnapshot | undefined> {
  for (let attempt = 0; attempt < attemptsMax; attempt++) {
    const stored = await snapshots.read(headKey(name));
    const head = stored && readable(() => readHead(stored.value));
    if (head?.incarnation !== incarnation || head.number < number) return undefined;
    const bytes = await readParts(snapshots, name, head);
    const snapshot = bytes && readable(() => readBlocks(bytes));
    if (snapshot !== undefined) return snapshot.number === head.number ? snapshot : undefined;
  }
  return undefined;
}

/** Undefined if a part is missing or has been overwritten. */
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

/** Undefined for malformed bytes: any process may have written them. */
function readable<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
