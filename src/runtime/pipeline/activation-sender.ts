// Sends activations to next members of groups. A chunk is queued before the step that computes it, so that it leaves with the step's last operation.
import type { Activations, InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { RowPages } from '../../util/step.ts';
import { LinkCounters } from '../transfer/link-counters.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';
import { type ActivationMemory, type ActivationWire, BufferPool, pagesOfChunk } from './activation-memory.ts';

interface OutgoingChunk {
  readonly number: number;
  readonly to: InstanceIndex;
  readonly id: RequestId;
  readonly chunk: Activations;
  /** Undefined until the next member grants a receive buffer. */
  receiveBuffer: ReceiveBufferHandle | undefined;
  /** Send buffer; undefined: none was free. */
  pages: Int32Array | undefined;
  /** Activations kept outside a send buffer, because none was free. */
  rows: Float32Array | undefined;
  computed: boolean;
  /** Passed to the messenger, which sends it once it is computed. */
  sent: boolean;
}

export class ActivationSender {
  readonly #memory: ActivationMemory;
  readonly #messenger: Messenger;
  readonly #post: (to: InstanceIndex, wire: ActivationWire) => void;
  readonly #pool: BufferPool;
  /** By number, in the order of computation. */
  readonly #chunks = new Map<number, OutgoingChunk>();
  /** Receive buffers granted in advance, by member. */
  readonly #granted = new Map<InstanceIndex, ReceiveBufferHandle[]>();
  /** Lost members. */
  readonly #lost = new Set<InstanceIndex>();
  readonly #links: LinkCounters;
  /** Unreachable receive buffers with unsettled chunks. */
  readonly #unreachable = new Set<ReceiveBufferHandle>();
  #events: InstanceEvent[] = [];
  #number = 0;

  constructor(memory: ActivationMemory, messenger: Messenger, post: (to: InstanceIndex, wire: ActivationWire) => void) {
    this.#memory = memory;
    this.#messenger = messenger;
    this.#post = post;
    this.#pool = new BufferPool(0, memory.sendBuffers, memory.chunkPages);
    this.#links = new LinkCounters(messenger);
  }

  get inFlight(): number {
    return this.#chunks.size;
  }

  /** Number of chunks kept outside send buffers. */
  get held(): number {
    let count = 0;
    for (const { rows } of this.#chunks.values()) if (rows !== undefined) count++;
    return count;
  }

  /** True if an announced chunk of the request must be computed again: the next member keeps a buffer for it. */
  isRestarting(id: RequestId): boolean {
    for (const outgoing of this.#chunks.values()) if (outgoing.id === id && !outgoing.computed) return true;
    return false;
  }

  /** Counts bytes of activations, without the padding of pages. */
  get links(): readonly LinkSnapshot[] {
    return this.#links.all;
  }

  /** How often the bytes of links have changed. */
  get linkChanges(): number {
    return this.#links.changes;
  }

  /** Called before the step over the chunk. Returns the send buffer for its activations; undefined: `ended` reads them from the step's output. */
  begin(to: InstanceIndex, id: RequestId, chunk: Activations): RowPages | undefined {
    this.#dropArrived();
    const outgoing = this.#pending(to, id, chunk) ?? this.#add(to, id, chunk);
    if (this.#pool.free > 0) outgoing.receiveBuffer ??= this.#granted.get(to)?.shift();
    // The last buffer is reserved for chunks that can be sent: chunks that wait for a receive buffer must not block all of them.
    if (outgoing.receiveBuffer !== undefined || this.#pool.free > 1) outgoing.pages ??= this.#pool.take();
    const { number, pages } = outgoing;
    this.#post(to, { kind: 'activations', number, id, chunk, receiveBuffer: outgoing.receiveBuffer });
    if (pages === undefined) return undefined;
    // The messenger counts steps; this is the next one.
    if (outgoing.receiveBuffer !== undefined)
      this.#send(outgoing, pages, outgoing.receiveBuffer, this.#messenger.nextPoolStep);
    return { pool: this.#memory.pool, pages };
  }

  /** Called after the step. @param left reads the activations from its output; undefined: the step failed, and runs again or never */
  ended(to: InstanceIndex, id: RequestId, chunk: Activations, left: (() => Float32Array) | undefined): void {
    const outgoing = this.#pending(to, id, chunk);
    if (outgoing === undefined) return;
    const { receiveBuffer, pages, sent } = outgoing;
    if (left === undefined) {
      // The next step may belong to another request.
      if (receiveBuffer !== undefined) this.#messenger.stop(receiveBuffer);
      outgoing.sent = false;
      this.#releaseBuffer(outgoing);
      return;
    }
    outgoing.computed = true;
    if (pages === undefined) outgoing.rows = left();
    if (sent && receiveBuffer !== undefined) this.#count(outgoing, receiveBuffer);
    this.#sendNext();
  }

  /** The next member grants a receive buffer. */
  onBuffer(from: InstanceIndex, receiveBuffer: ReceiveBufferHandle, number: number | undefined): void {
    this.#lost.delete(from);
    const outgoing = number === undefined ? undefined : this.#chunks.get(number);
    if (outgoing?.to === from) {
      outgoing.receiveBuffer ??= receiveBuffer;
      this.#sendNext();
    } else if (number === undefined && !this.#isKnown(receiveBuffer)) {
      this.#granted.set(from, [...(this.#granted.get(from) ?? []), receiveBuffer]);
    }
  }

  /** The next member does not need the chunk. */
  onCancelled(from: InstanceIndex, number: number): void {
    const outgoing = this.#chunks.get(number);
    if (outgoing?.to === from) this.#drop(outgoing);
  }

  /** Drops chunks of ended requests that are not computed, or go to a lost member. */
  sweep(isComputing: (id: RequestId) => boolean): void {
    for (const outgoing of this.#chunks.values())
      if ((!outgoing.computed || this.#lost.has(outgoing.to)) && !isComputing(outgoing.id)) this.#drop(outgoing);
  }

  /** A member is lost, or has started a new session. */
  onPeerLost(other: InstanceIndex): void {
    this.#granted.delete(other);
    this.#lost.add(other);
    for (const outgoing of this.#chunks.values()) if (outgoing.to === other) this.#drop(outgoing);
  }

  /** A member is lost, and its index is never used again. The process cancels chunks that are announced to it later. */
  onPeerEnded(other: InstanceIndex): void {
    this.onPeerLost(other);
    this.#lost.delete(other);
    this.#links.forget(other);
  }

  /** True if a computed chunk with a receive buffer waits for a send buffer; its release causes no event. */
  get waitsForBuffer(): boolean {
    for (const { computed, sent, receiveBuffer } of this.#chunks.values())
      if (computed && !sent && receiveBuffer !== undefined) return true;
    return false;
  }

  /** Events of unreachable members since the last call. */
  poll(): readonly InstanceEvent[] {
    this.#dropArrived();
    const events = this.#events;
    this.#events = [];
    return events;
  }

  /** Drops chunks that have arrived or are unreachable. */
  #dropArrived(): void {
    const gone = [...this.#chunks.values()].filter(
      ({ computed, sent, receiveBuffer }) =>
        computed && sent && receiveBuffer !== undefined && this.#messenger.pending(receiveBuffer) === 0,
    );
    if (gone.length === 0) return;
    for (const receiveBuffer of this.#messenger.unreachable()) this.#unreachable.add(receiveBuffer);
    for (const outgoing of gone) {
      const { receiveBuffer = '', id, to } = outgoing;
      if (this.#unreachable.has(receiveBuffer))
        this.#events.push({ kind: 'streamBroken', id, to, ofActivations: true });
      this.#drop(outgoing);
    }
  }

  /** The chunk of an earlier failed step. */
  #pending(to: InstanceIndex, id: RequestId, { from }: Activations): OutgoingChunk | undefined {
    for (const each of this.#chunks.values())
      if (each.to === to && each.id === id && each.chunk.from === from && !each.computed) return each;
    return undefined;
  }

  #add(to: InstanceIndex, id: RequestId, chunk: Activations): OutgoingChunk {
    const number = ++this.#number;
    const nothing = { receiveBuffer: undefined, pages: undefined, rows: undefined, computed: false, sent: false };
    const outgoing: OutgoingChunk = { number, to, id, chunk, ...nothing };
    this.#chunks.set(number, outgoing);
    return outgoing;
  }

  #isKnown(receiveBuffer: ReceiveBufferHandle): boolean {
    for (const all of this.#granted.values()) if (all.includes(receiveBuffer)) return true;
    for (const outgoing of this.#chunks.values()) if (outgoing.receiveBuffer === receiveBuffer) return true;
    return false;
  }

  /** Sends computed chunks that waited for a receive buffer or a send buffer. */
  #sendNext(): void {
    for (const outgoing of this.#chunks.values()) {
      const { computed, sent, receiveBuffer, rows } = outgoing;
      if (!computed || sent || receiveBuffer === undefined) continue;
      outgoing.pages ??= this.#pool.take();
      const { pages } = outgoing;
      if (pages === undefined) continue;
      if (rows !== undefined) this.#memory.write(pages, rows);
      outgoing.rows = undefined;
      this.#count(outgoing, receiveBuffer);
      this.#send(outgoing, pages, receiveBuffer, 0);
    }
  }

  #send(outgoing: OutgoingChunk, pages: Int32Array, receiveBuffer: ReceiveBufferHandle, step: number): void {
    outgoing.sent = true;
    const descriptors = new Int32Array(pagesOfChunk(this.#memory, outgoing.chunk) * 3);
    for (let place = 0; place * 3 < descriptors.length; place++) descriptors.set([0, pages[place], place], 3 * place);
    this.#messenger.send(receiveBuffer, step, descriptors, true);
  }

  #count(outgoing: OutgoingChunk, receiveBuffer: ReceiveBufferHandle): void {
    const { to, chunk } = outgoing;
    const bytes = (chunk.tokens - chunk.from) * this.#memory.rowValues * Float32Array.BYTES_PER_ELEMENT;
    this.#links.add(to, receiveBuffer, nameOf(outgoing), bytes);
  }

  #drop(outgoing: OutgoingChunk): void {
    const { number, receiveBuffer } = outgoing;
    this.#chunks.delete(number);
    if (receiveBuffer !== undefined) this.#unreachable.delete(receiveBuffer);
    this.#links.streamEnded(nameOf(outgoing));
    if (receiveBuffer !== undefined) this.#messenger.stop(receiveBuffer);
    this.#releaseBuffer(outgoing);
  }

  /** Releases the send buffer; the messenger no longer reads it. */
  #releaseBuffer(outgoing: OutgoingChunk): void {
    const { pages } = outgoing;
    if (pages === undefined) return;
    outgoing.pages = undefined;
    this.#pool.release(pages);
    this.#sendNext();
  }
}

function nameOf({ number }: OutgoingChunk): string {
  return String(number);
}
