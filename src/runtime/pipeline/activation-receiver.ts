// Chunks of rows that come from the members of groups before this one: room is kept for those that come next, so that they can leave with the step that makes them.
import type { Activations, InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { PendingRows } from '../../util/step.ts';
import { neverArrives } from '../threads/awaited-keys.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';
import {
  type ActivationMemory,
  type ActivationWire,
  BufferPool,
  type ChunkRange,
  pagesOfChunk,
} from './activation-memory.ts';

/** Somewhere for a chunk to land. */
interface Landing {
  readonly from: InstanceIndex;
  readonly room: Int32Array;
  /** Of the chunk that asked for it. */
  readonly number: number | undefined;
  /** Whose it is; undefined: nobody has said so yet. */
  what: { readonly id: RequestId; readonly chunk: Activations } | undefined;
  here: boolean;
}

type Told = Extract<ActivationWire, { kind: 'activations' }>;

/** Chunks that one member may have on their way without asking: one that is computed here, one that is there to be computed next, and one that is being made. */
const keptEach = 3;
/** Room that is not kept for anybody, and goes to whoever has something first: so each in turn gets on. */
const keptForAll = 2;
/** Long for a step, and not longer than guests and messages may wait. */
const withinMs = 1000;

export class ActivationReceiver {
  readonly #memory: ActivationMemory;
  readonly #messenger: Messenger;
  readonly #post: (to: InstanceIndex, wire: ActivationWire) => void;
  readonly #rooms: BufferPool;
  readonly #landings = new Map<ReceiveBufferHandle, Landing>();
  /** Requests whose rows are expected, and from whom; undefined: that one is gone. */
  readonly #expected = new Map<RequestId, InstanceIndex | undefined>();
  /** What has no room, in the order in which it was told of. */
  #waiting: { readonly from: InstanceIndex; readonly told: Told }[] = [];
  #events: InstanceEvent[] = [];

  constructor(memory: ActivationMemory, messenger: Messenger, post: (to: InstanceIndex, wire: ActivationWire) => void) {
    this.#memory = memory;
    this.#messenger = messenger;
    this.#post = post;
    this.#rooms = new BufferPool(memory.sendBuffers, memory.receiveBuffers, memory.chunkPages);
  }

  /** Chunks that are here or on their way. */
  get underWay(): number {
    let count = this.#waiting.length;
    for (const { what } of this.#landings.values()) if (what !== undefined) count++;
    return count;
  }

  /** Is there something to tell? */
  get hasNews(): boolean {
    return this.#events.length > 0;
  }

  /** Chunks of the request come from there. */
  expect(id: RequestId, from: InstanceIndex): void {
    this.#expected.set(id, from);
    this.#share();
  }

  hear(from: InstanceIndex, told: Told): void {
    const { number, id, landing } = told;
    if (this.#expected.get(id) !== from) {
      // What is told of room is told once: that of a chunk that nobody wants is free.
      if (landing !== undefined && this.#landings.get(landing)?.from === from) this.#close(landing);
      else if (landing === undefined) this.#post(from, { kind: 'activationsCancelled', number });
    } else if (landing !== undefined) {
      this.#tell(from, landing, told);
    } else if (!this.#isAsked(from, number)) {
      this.#waiting.push({ from, told });
    }
    this.#share();
  }

  /** One that is told of again has room, or waits for some. */
  #isAsked(from: InstanceIndex, number: number): boolean {
    for (const landing of this.#landings.values()) if (landing.from === from && landing.number === number) return true;
    return this.#waiting.some((other) => other.from === from && other.told.number === number);
  }

  #tell(from: InstanceIndex, handle: ReceiveBufferHandle, { id, chunk }: Told): void {
    const landing = this.#landings.get(handle);
    if (landing?.from !== from) return;
    landing.what ??= { id, chunk };
    this.#events.push({ kind: landing.here ? 'activations' : 'activationsPending', id, ...chunk });
  }

  /** What nobody waits for any more is not to come. */
  sweep(isWanted: (id: RequestId) => boolean): void {
    for (const id of this.#expected.keys()) {
      if (isWanted(id)) continue;
      this.#expected.delete(id);
      for (const [handle, { what }] of this.#landings) if (what?.id === id) this.#close(handle);
      for (const { from, told } of this.#waiting)
        if (told.id === id) this.#post(from, { kind: 'activationsCancelled', number: told.number });
      this.#waiting = this.#waiting.filter(({ told }) => told.id !== id);
      this.#share();
    }
  }

  /** It is gone, or has nothing more of what was under way. What has landed can be computed with. */
  lost(other: InstanceIndex): void {
    for (const [id, from] of this.#expected) if (from === other) this.#expected.set(id, undefined);
    this.#waiting = this.#waiting.filter(({ from }) => from !== other);
    for (const [handle, { from, what, here }] of this.#landings)
      if (from === other && !(here && what !== undefined)) this.#close(handle);
    this.#share();
  }

  /** What has been told, and what has landed, since the last call. */
  news(): readonly InstanceEvent[] {
    for (const handle of this.#landings.size === 0 ? [] : this.#messenger.received()) {
      const landing = this.#landings.get(handle);
      if (landing === undefined || landing.here) continue;
      landing.here = true;
      const { what } = landing;
      if (what !== undefined) this.#events.push({ kind: 'activations', id: what.id, ...what.chunk });
    }
    const events = this.#events;
    this.#events = [];
    return events;
  }

  /** Where a step finds that chunk, now or as soon as it has come. */
  rowsOf(id: RequestId, chunk: ChunkRange): PendingRows {
    const { pool, chunkPages } = this.#memory;
    const count = pagesOfChunk(this.#memory, chunk);
    const [handle, landing] = this.#find(id, chunk) ?? [];
    const arrivals = handle === undefined ? undefined : this.#messenger.arrivals(handle, count);
    // Whoever was to make it is gone: the step hears so at once.
    if (landing === undefined || arrivals === undefined)
      return { pool, pages: new Int32Array(chunkPages), arrivals: neverArrives, withinMs: 0 };
    return { pool, pages: landing.room.subarray(0, count), arrivals, withinMs };
  }

  /** It has been computed with. */
  used(id: RequestId, chunk: ChunkRange): void {
    const [handle] = this.#find(id, chunk) ?? [];
    if (handle !== undefined) this.#close(handle);
    this.#share();
  }

  #find(id: RequestId, { from, tokens }: ChunkRange): readonly [ReceiveBufferHandle, Landing] | undefined {
    for (const found of this.#landings) {
      const { what } = found[1];
      if (what?.id === id && what.chunk.from === from && what.chunk.tokens === tokens) return found;
    }
    return undefined;
  }

  /** Whoever told of a chunk first gets room first; what is left is kept for those that come next. */
  #share(): void {
    while (this.#waiting.length > 0 && this.#rooms.free > 0) {
      const [{ from, told }, ...rest] = this.#waiting;
      this.#waiting = rest;
      this.#tell(from, this.#open(from, told.number), told);
    }
    for (const from of new Set(this.#expected.values()))
      while (from !== undefined && this.#keptFor(from) < keptEach && this.#rooms.free > keptForAll)
        this.#open(from, undefined);
  }

  #keptFor(other: InstanceIndex): number {
    let count = 0;
    for (const { from } of this.#landings.values()) if (from === other) count++;
    return count;
  }

  #open(from: InstanceIndex, number: number | undefined): ReceiveBufferHandle {
    const room = this.#rooms.take();
    if (room === undefined) throw new Error('Cannot receive rows: no room is free');
    const handle = this.#messenger.open(room, 1);
    this.#landings.set(handle, { from, room, number, what: undefined, here: false });
    this.#post(from, { kind: 'activationsBuffer', number, landing: handle });
    return handle;
  }

  #close(handle: ReceiveBufferHandle): void {
    const landing = this.#landings.get(handle);
    if (landing === undefined) return;
    this.#landings.delete(handle);
    this.#messenger.close(handle);
    this.#rooms.release(landing.room);
  }
}
