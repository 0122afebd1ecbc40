// Rows of the residual stream that go to members of a group in other processes: over pages of a small pool, of which both sides keep the half.
import type { Activations, InstanceEvent, InstanceIndex } from '../cluster/messages.ts';
import type { LinkSnapshot, RequestId } from '../cluster/ports.ts';
import { LinkCounts } from './link-counts.ts';
import type { LandingHandle, Messenger } from './messenger.ts';

/** Numbers are the sender's. What has been told of is always answered by `rowsHere`, or one side has lost the other. */
export type RowsWire =
  /** To the next member: this chunk is there to be sent. */
  | { readonly kind: 'rows'; readonly number: number; readonly id: RequestId; readonly chunk: Activations }
  /** Back: send it there. */
  | { readonly kind: 'rowsLand'; readonly number: number; readonly landing: LandingHandle }
  /** Back: it is here, or not wanted any more. */
  | { readonly kind: 'rowsHere'; readonly number: number };

/** A pool of float32 pages beside that of keys and values. */
export interface RowPages {
  /** Of the pool; one half is for what leaves, the other for what comes. */
  readonly pages: number;
  /** Of the longest chunk. */
  readonly chunkPages: number;
  readonly pageValues: number;
  readonly columns: number;
  read(page: number): Float32Array;
  write(page: number, values: Float32Array): void;
}

/** A chunk that has come whole. */
export interface ComeRows {
  readonly id: RequestId;
  readonly chunk: Activations;
  readonly rows: Float32Array;
}

interface Leaving {
  readonly to: InstanceIndex;
  readonly id: RequestId;
  readonly rows: Float32Array;
  landing: LandingHandle | undefined;
  /** Undefined: it waits for room. */
  pages: Int32Array | undefined;
}

interface Coming {
  readonly from: InstanceIndex;
  readonly number: number;
  readonly id: RequestId;
  readonly chunk: Activations;
  readonly pages: Int32Array;
}

type Waiting = Omit<Coming, 'pages'>;

/** Between two looks at what the messenger has given up. */
const lookUs = 1_000_000;

export class LiveRows {
  readonly #memory: RowPages;
  readonly #messenger: Messenger;
  readonly #post: (to: InstanceIndex, wire: RowsWire) => void;
  readonly #leaving = new Map<number, Leaving>();
  readonly #coming = new Map<LandingHandle, Coming>();
  readonly #links: LinkCounts;
  /** In the order in which they were told of. */
  #waiting: Waiting[] = [];
  /** First pages of room for a chunk that is free: of what leaves, and of what comes. */
  readonly #outFree: number[] = [];
  readonly #inFree: number[] = [];
  #number = 0;
  #lookedUs = 0;

  constructor(memory: RowPages, messenger: Messenger, post: (to: InstanceIndex, wire: RowsWire) => void) {
    this.#memory = memory;
    this.#messenger = messenger;
    this.#links = new LinkCounts(messenger);
    this.#post = post;
    const { pages, chunkPages } = memory;
    for (let first = 0; first + chunkPages <= pages / 2; first += chunkPages) {
      this.#outFree.push(first);
      this.#inFree.push(pages / 2 + first);
    }
  }

  /** Chunks on their way, either way: nothing once all requests are over. */
  get underWay(): number {
    return this.#leaving.size + this.#coming.size + this.#waiting.length;
  }

  /** Bytes of rows, without what pads them to pages. */
  get links(): readonly LinkSnapshot[] {
    return this.#links.all;
  }

  /** @param rows (chunk.tokens - chunk.from, columns), kept until they are there */
  send(to: InstanceIndex, id: RequestId, chunk: Activations, rows: Float32Array): void {
    const number = ++this.#number;
    this.#leaving.set(number, { to, id, rows, landing: undefined, pages: undefined });
    this.#post(to, { kind: 'rows', number, id, chunk });
  }

  /** @param isWanted does anybody wait for the request's rows? */
  hear(from: InstanceIndex, wire: RowsWire, isWanted: (id: RequestId) => boolean): void {
    if (wire.kind === 'rows') {
      const { number, id, chunk } = wire;
      this.#waiting.push({ from, number, id, chunk });
      this.sweep(isWanted);
      this.#admit();
      return;
    }
    const leaving = this.#leaving.get(wire.number);
    if (leaving?.to !== from) return;
    if (wire.kind === 'rowsHere') this.#drop(wire.number, leaving);
    else leaving.landing ??= wire.landing;
    this.#sendNext();
  }

  /** What nobody waits for any more is not to come. */
  sweep(isWanted: (id: RequestId) => boolean): void {
    this.#waiting = this.#waiting.filter(({ from, number, id }) => {
      const wanted = isWanted(id);
      if (!wanted) this.#post(from, { kind: 'rowsHere', number });
      return wanted;
    });
    for (const [landing, { from, number, id }] of this.#coming) {
      if (isWanted(id)) continue;
      this.#close(landing);
      this.#post(from, { kind: 'rowsHere', number });
    }
    this.#admit();
  }

  /** It is gone, or has nothing more of what was under way. */
  lost(other: InstanceIndex): void {
    this.#waiting = this.#waiting.filter(({ from }) => from !== other);
    for (const [landing, { from }] of this.#coming) if (from === other) this.#close(landing);
    for (const [number, leaving] of this.#leaving) if (leaving.to === other) this.#drop(number, leaving);
    this.#admit();
    this.#sendNext();
  }

  /** Chunks that have come. */
  landed(): readonly ComeRows[] {
    if (this.#coming.size === 0) return [];
    const all: ComeRows[] = [];
    for (const landing of this.#messenger.landed()) {
      const coming = this.#coming.get(landing);
      if (coming === undefined) continue;
      const { id, chunk, from, number } = coming;
      const rows = this.#read(coming);
      this.#close(landing);
      this.#post(from, { kind: 'rowsHere', number });
      all.push({ id, chunk, rows });
    }
    this.#admit();
    return all;
  }

  /** When to ask for `broken` again. */
  get nextUs(): number {
    return this.#leaving.size === 0 ? Number.POSITIVE_INFINITY : this.#lookedUs + lookUs;
  }

  /** Of what could not be sent for too long. */
  broken(nowUs: number): readonly InstanceEvent[] {
    if (nowUs < this.nextUs) return [];
    this.#lookedUs = nowUs;
    const givenUp = new Set(this.#messenger.givenUp());
    const events: InstanceEvent[] = [];
    for (const [number, leaving] of this.#leaving) {
      const { landing, id, to } = leaving;
      if (landing === undefined || !givenUp.has(landing)) continue;
      this.#drop(number, leaving);
      events.push({ kind: 'streamBroken', id, to, passes: true });
    }
    this.#sendNext();
    return events;
  }

  /** Whoever told of it first gets room first. */
  #admit(): void {
    while (this.#waiting.length > 0 && this.#inFree.length > 0) {
      const [first, ...rest] = this.#waiting;
      this.#waiting = rest;
      const pages = this.#take(this.#inFree, this.#valuesOf(first.chunk));
      const landing = this.#messenger.open(pages);
      this.#coming.set(landing, { ...first, pages });
      this.#post(first.from, { kind: 'rowsLand', number: first.number, landing });
    }
  }

  #sendNext(): void {
    for (const [number, leaving] of this.#leaving) {
      const { to, landing, rows } = leaving;
      if (landing === undefined || leaving.pages !== undefined) continue;
      if (this.#outFree.length === 0) return;
      leaving.pages = this.#take(this.#outFree, rows.length);
      this.#write(leaving.pages, rows);
      const parcels = new Int32Array(leaving.pages.length * 3);
      for (const [place, page] of leaving.pages.entries()) parcels.set([0, page, place], 3 * place);
      this.#links.add(to, landing, String(number), rows.byteLength);
      this.#messenger.send(landing, 0, parcels, true);
    }
  }

  /** Pages for so many values, of the first room that is free. */
  #take(free: number[], values: number): Int32Array {
    const { chunkPages, pageValues } = this.#memory;
    const pages = Math.ceil(values / pageValues);
    const first = free.shift();
    if (first === undefined || pages > chunkPages)
      throw new Error(`Cannot move rows: ${values} values need ${pages} pages of ${chunkPages}`);
    return Int32Array.from({ length: pages }, (_, i) => first + i);
  }

  #write(pages: Int32Array, rows: Float32Array): void {
    const { pageValues } = this.#memory;
    for (const [i, page] of pages.entries()) {
      const part = rows.subarray(i * pageValues, (i + 1) * pageValues);
      const whole = part.length === pageValues ? part : new Float32Array(pageValues);
      if (whole !== part) whole.set(part);
      this.#memory.write(page, whole);
    }
  }

  #read({ pages, chunk }: Coming): Float32Array {
    const rows = new Float32Array(this.#valuesOf(chunk));
    const { pageValues } = this.#memory;
    for (const [i, page] of pages.entries()) {
      const part = rows.subarray(i * pageValues, (i + 1) * pageValues);
      part.set(this.#memory.read(page).subarray(0, part.length));
    }
    return rows;
  }

  #valuesOf({ from, tokens }: Activations): number {
    return (tokens - from) * this.#memory.columns;
  }

  #close(landing: LandingHandle): void {
    const coming = this.#coming.get(landing);
    if (coming === undefined) return;
    this.#coming.delete(landing);
    this.#messenger.close(landing);
    this.#inFree.push(coming.pages[0]);
  }

  #drop(number: number, { landing, pages }: Leaving): void {
    this.#leaving.delete(number);
    this.#links.settle(String(number));
    if (landing === undefined || pages === undefined) return;
    // Nothing is read for it any more, so that others may have its room.
    this.#messenger.stop(landing);
    this.#outFree.push(pages[0]);
  }
}
