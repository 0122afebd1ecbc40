// Receives activations from previous members of groups. Buffers are granted in advance, so that a chunk can leave with the step that computes it.
import type { Activations, InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { PendingRows } from '../../util/step.ts';
import { neverArrives } from '../threads/arriving-keys.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';
import {
  type ActivationMemory,
  type ActivationWire,
  BufferPool,
  type ChunkRange,
  pagesOfChunk,
} from './activation-memory.ts';

/** A receive buffer granted to a member. */
interface Buffer {
  readonly from: InstanceIndex;
  readonly pages: Int32Array;
  /** Number of the chunk that requested it. */
  readonly number: number | undefined;
  /** The announced chunk; undefined: none yet. */
  chunk: { readonly id: RequestId; readonly chunk: Activations } | undefined;
  received: boolean;
}

type Announced = Extract<ActivationWire, { kind: 'activations' }>;

/** Buffers granted to each member in advance: for the chunk computed here, the next one, and the one that the member computes. */
const grantedEach = 3;
/** Buffers granted only on request, first come first served: every member makes progress. */
const sharedBuffers = 2;
/** Longest wait of a step: longer than any step, and acceptable as a delay of messages and remote attention. */
const withinMs = 1000;

export class ActivationReceiver {
  readonly #memory: ActivationMemory;
  readonly #messenger: Messenger;
  readonly #post: (to: InstanceIndex, wire: ActivationWire) => void;
  readonly #pool: BufferPool;
  readonly #buffers = new Map<ReceiveBufferHandle, Buffer>();
  /** By request, the previous member; undefined if it is lost. */
  readonly #expected = new Map<RequestId, InstanceIndex | undefined>();
  /** Announced chunks without a buffer, in order of arrival. */
  #waiting: { readonly from: InstanceIndex; readonly announced: Announced }[] = [];
  #events: InstanceEvent[] = [];

  constructor(memory: ActivationMemory, messenger: Messenger, post: (to: InstanceIndex, wire: ActivationWire) => void) {
    this.#memory = memory;
    this.#messenger = messenger;
    this.#post = post;
    this.#pool = new BufferPool(memory.sendBuffers, memory.receiveBuffers, memory.chunkPages);
  }

  /** Number of announced chunks, received or not. */
  get inFlight(): number {
    let count = this.#waiting.length;
    for (const { chunk } of this.#buffers.values()) if (chunk !== undefined) count++;
    return count;
  }

  /** Whether `poll` would return events. */
  get hasEvents(): boolean {
    return this.#events.length > 0;
  }

  /** Chunks of the request will come from that member. */
  expect(id: RequestId, from: InstanceIndex): void {
    this.#expected.set(id, from);
    this.#grant();
  }

  onAnnounced(from: InstanceIndex, announced: Announced): void {
    const { number, id, receiveBuffer } = announced;
    if (this.#expected.get(id) !== from) {
      // A buffer is used once: that of an unneeded chunk is freed.
      if (receiveBuffer !== undefined && this.#buffers.get(receiveBuffer)?.from === from) this.#close(receiveBuffer);
      else if (receiveBuffer === undefined) this.#post(from, { kind: 'activationsCancelled', number });
    } else if (receiveBuffer !== undefined) {
      this.#assign(from, receiveBuffer, announced);
    } else if (!this.#isPending(from, number)) {
      this.#waiting.push({ from, announced });
    }
    this.#grant();
  }

  /** A chunk announced again already has a buffer or waits for one. */
  #isPending(from: InstanceIndex, number: number): boolean {
    for (const buffer of this.#buffers.values()) if (buffer.from === from && buffer.number === number) return true;
    return this.#waiting.some((other) => other.from === from && other.announced.number === number);
  }

  #assign(from: InstanceIndex, handle: ReceiveBufferHandle, { id, chunk }: Announced): void {
    const buffer = this.#buffers.get(handle);
    if (buffer?.from !== from) return;
    buffer.chunk ??= { id, chunk };
    this.#events.push({ kind: buffer.received ? 'activations' : 'activationsPending', id, ...chunk });
  }

  /** Cancels the chunks of requests that are no longer computed here. */
  sweep(isComputing: (id: RequestId) => boolean): void {
    for (const id of this.#expected.keys()) {
      if (isComputing(id)) continue;
      this.#expected.delete(id);
      for (const [handle, { chunk }] of this.#buffers) if (chunk?.id === id) this.#close(handle);
      for (const { from, announced } of this.#waiting)
        if (announced.id === id) this.#post(from, { kind: 'activationsCancelled', number: announced.number });
      this.#waiting = this.#waiting.filter(({ announced }) => announced.id !== id);
      this.#grant();
    }
  }

  /** A member is lost, or has started a new session. Received chunks stay usable. */
  onPeerLost(other: InstanceIndex): void {
    for (const [id, from] of this.#expected) if (from === other) this.#expected.set(id, undefined);
    this.#waiting = this.#waiting.filter(({ from }) => from !== other);
    for (const [handle, { from, chunk, received }] of this.#buffers)
      if (from === other && !(received && chunk !== undefined)) this.#close(handle);
    this.#grant();
  }

  /** Events of announced and received chunks since the last call. */
  poll(): readonly InstanceEvent[] {
    for (const handle of this.#buffers.size === 0 ? [] : this.#messenger.received()) {
      const buffer = this.#buffers.get(handle);
      if (buffer === undefined || buffer.received) continue;
      buffer.received = true;
      const { chunk } = buffer;
      if (chunk !== undefined) this.#events.push({ kind: 'activations', id: chunk.id, ...chunk.chunk });
    }
    const events = this.#events;
    this.#events = [];
    return events;
  }

  /** Where a step reads the chunk, now or once it has arrived. */
  rowsOf(id: RequestId, chunk: ChunkRange): PendingRows {
    const { pool, chunkPages } = this.#memory;
    const count = pagesOfChunk(this.#memory, chunk);
    const [handle, buffer] = this.#find(id, chunk) ?? [];
    const arrivals = handle === undefined ? undefined : this.#messenger.arrivals(handle, count);
    // The previous member is lost: the step fails at once.
    if (buffer === undefined || arrivals === undefined)
      return { pool, pages: new Int32Array(chunkPages), arrivals: neverArrives, withinMs: 0 };
    return { pool, pages: buffer.pages.subarray(0, count), arrivals, withinMs };
  }

  /** A step has read the chunk. */
  used(id: RequestId, chunk: ChunkRange): void {
    const [handle] = this.#find(id, chunk) ?? [];
    if (handle !== undefined) this.#close(handle);
    this.#grant();
  }

  #find(id: RequestId, { from, tokens }: ChunkRange): readonly [ReceiveBufferHandle, Buffer] | undefined {
    for (const found of this.#buffers) {
      const { chunk } = found[1];
      if (chunk?.id === id && chunk.chunk.from === from && chunk.chunk.tokens === tokens) return found;
    }
    return undefined;
  }

  /** Grants buffers to waiting chunks in order of arrival, then in advance to members. */
  #grant(): void {
    while (this.#waiting.length > 0 && this.#pool.free > 0) {
      const [{ from, announced }, ...rest] = this.#waiting;
      this.#waiting = rest;
      this.#assign(from, this.#open(from, announced.number), announced);
    }
    for (const from of new Set(this.#expected.values()))
      while (from !== undefined && this.#grantedTo(from) < grantedEach && this.#pool.free > sharedBuffers)
        this.#open(from, undefined);
  }

  #grantedTo(other: InstanceIndex): number {
    let count = 0;
    for (const { from } of this.#buffers.values()) if (from === other) count++;
    return count;
  }

  #open(from: InstanceIndex, number: number | undefined): ReceiveBufferHandle {
    const pages = this.#pool.take();
    if (pages === undefined) throw new Error('Cannot receive activations: no buffer is free');
    const handle = this.#messenger.open(pages, 1);
    this.#buffers.set(handle, { from, pages, number, chunk: undefined, received: false });
    this.#post(from, { kind: 'activationsBuffer', number, receiveBuffer: handle });
    return handle;
  }

  #close(handle: ReceiveBufferHandle): void {
    const buffer = this.#buffers.get(handle);
    if (buffer === undefined) return;
    this.#buffers.delete(handle);
    this.#messenger.close(handle);
    this.#pool.release(buffer.pages);
  }
}
