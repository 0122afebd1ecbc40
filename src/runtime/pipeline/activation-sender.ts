// Chunks of rows that leave for the next member of a group: put on their way before the step that computes them begins, so that they leave with its last op.
import type { Activations, InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { RowPages } from '../../util/step.ts';
import { LinkCounters } from '../transfer/link-counters.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';
import { type ActivationMemory, type ActivationWire, BufferPool, pagesOfChunk } from './activation-memory.ts';

interface Leaving {
  readonly number: number;
  readonly to: InstanceIndex;
  readonly id: RequestId;
  readonly chunk: Activations;
  /** Undefined: the other side has not said where to. */
  landing: ReceiveBufferHandle | undefined;
  /** Where the step leaves its rows; undefined: no room was free. */
  room: Int32Array | undefined;
  /** What it left where no room was free: the next member is that far behind. */
  rows: Float32Array | undefined;
  computed: boolean;
  /** The messenger has it, and sends it as soon as it is computed. */
  sent: boolean;
}

export class ActivationSender {
  readonly #memory: ActivationMemory;
  readonly #messenger: Messenger;
  readonly #post: (to: InstanceIndex, wire: ActivationWire) => void;
  readonly #rooms: BufferPool;
  /** In the order in which they are computed. */
  readonly #leaving = new Map<number, Leaving>();
  /** Room that others keep for what comes next. */
  readonly #landings = new Map<InstanceIndex, ReceiveBufferHandle[]>();
  /** They say nothing, as far as is known. */
  readonly #gone = new Set<InstanceIndex>();
  readonly #links: LinkCounters;
  /** Landings that the messenger has given up, until what was to go there is settled. */
  readonly #givenUp = new Set<ReceiveBufferHandle>();
  #events: InstanceEvent[] = [];
  #number = 0;

  constructor(memory: ActivationMemory, messenger: Messenger, post: (to: InstanceIndex, wire: ActivationWire) => void) {
    this.#memory = memory;
    this.#messenger = messenger;
    this.#post = post;
    this.#rooms = new BufferPool(0, memory.sendBuffers, memory.chunkPages);
    this.#links = new LinkCounters(messenger);
  }

  get underWay(): number {
    return this.#leaving.size;
  }

  /** Chunks whose rows are kept where no room is. */
  get held(): number {
    let count = 0;
    for (const { rows } of this.#leaving.values()) if (rows !== undefined) count++;
    return count;
  }

  /** Is a chunk of the request told of whose step came to nothing, and runs again? The other side keeps room for it. */
  owes(id: RequestId): boolean {
    for (const leaving of this.#leaving.values()) if (leaving.id === id && !leaving.computed) return true;
    return false;
  }

  /** Bytes of rows, without what pads them to pages. */
  get links(): readonly LinkSnapshot[] {
    return this.#links.all;
  }

  /** The step over this chunk is about to run: where it is to leave its rows; undefined: in its buffer, `ended` asks for them. */
  begin(to: InstanceIndex, id: RequestId, chunk: Activations): RowPages | undefined {
    this.#settle();
    const leaving = this.#pending(to, id, chunk) ?? this.#add(to, id, chunk);
    if (this.#rooms.free > 0) leaving.landing ??= this.#landings.get(to)?.shift();
    // The last room is for those that can leave: the others could wait in all of them for the other side, and that for what has no room here.
    if (leaving.landing !== undefined || this.#rooms.free > 1) leaving.room ??= this.#rooms.take();
    const { number, room } = leaving;
    this.#post(to, { kind: 'activations', number, id, chunk, landing: leaving.landing });
    if (room === undefined) return undefined;
    // Steps are counted as they leave rows: this is the next.
    if (leaving.landing !== undefined) this.#send(leaving, room, leaving.landing, this.#messenger.nextStep);
    return { pool: this.#memory.pool, pages: room };
  }

  /** The step has run. @param left what it left in its buffer; undefined: it came to nothing, and runs again or never */
  ended(to: InstanceIndex, id: RequestId, chunk: Activations, left: (() => Float32Array) | undefined): void {
    const leaving = this.#pending(to, id, chunk);
    if (leaving === undefined) return;
    const { landing, room, sent } = leaving;
    if (left === undefined) {
      // The next step that leaves rows is perhaps another request's.
      if (landing !== undefined) this.#messenger.stop(landing);
      leaving.sent = false;
      this.#giveBack(leaving);
      return;
    }
    leaving.computed = true;
    if (room === undefined) leaving.rows = left();
    if (sent && landing !== undefined) this.#count(leaving, landing);
    this.#sendNext();
  }

  /** The other side says where to. */
  land(from: InstanceIndex, landing: ReceiveBufferHandle, number: number | undefined): void {
    this.#gone.delete(from);
    const leaving = number === undefined ? undefined : this.#leaving.get(number);
    if (leaving?.to === from) {
      leaving.landing ??= landing;
      this.#sendNext();
    } else if (number === undefined && !this.#isKnown(landing)) {
      this.#landings.set(from, [...(this.#landings.get(from) ?? []), landing]);
    }
  }

  /** Nobody there wants it. */
  unwanted(from: InstanceIndex, number: number): void {
    const leaving = this.#leaving.get(number);
    if (leaving?.to === from) this.#drop(leaving);
  }

  /** Those that are not computed, and will not be, do not leave; nor do those that nobody will ask for. */
  sweep(isComputing: (id: RequestId) => boolean): void {
    for (const leaving of this.#leaving.values())
      if ((!leaving.computed || this.#gone.has(leaving.to)) && !isComputing(leaving.id)) this.#drop(leaving);
  }

  /** The other side is gone, or has nothing more of what was under way. */
  lost(other: InstanceIndex): void {
    this.#landings.delete(other);
    this.#gone.add(other);
    for (const leaving of this.#leaving.values()) if (leaving.to === other) this.#drop(leaving);
  }

  /** Is something computed that has somewhere to go and waits for room? Nobody says when that is free. */
  get waitsForRoom(): boolean {
    for (const { computed, sent, landing } of this.#leaving.values())
      if (computed && !sent && landing !== undefined) return true;
    return false;
  }

  /** What could not be sent for too long, since the last call. */
  news(): readonly InstanceEvent[] {
    this.#settle();
    const events = this.#events;
    this.#events = [];
    return events;
  }

  /** Forgets what has arrived, or was given up. */
  #settle(): void {
    const gone = [...this.#leaving.values()].filter(
      ({ computed, sent, landing }) =>
        computed && sent && landing !== undefined && this.#messenger.pending(landing) === 0,
    );
    if (gone.length === 0) return;
    for (const landing of this.#messenger.unreachable()) this.#givenUp.add(landing);
    for (const leaving of gone) {
      const { landing = '', id, to } = leaving;
      if (this.#givenUp.has(landing)) this.#events.push({ kind: 'streamBroken', id, to, passes: true });
      this.#drop(leaving);
    }
  }

  /** One whose step came to nothing before. */
  #pending(to: InstanceIndex, id: RequestId, { from }: Activations): Leaving | undefined {
    for (const each of this.#leaving.values())
      if (each.to === to && each.id === id && each.chunk.from === from && !each.computed) return each;
    return undefined;
  }

  #add(to: InstanceIndex, id: RequestId, chunk: Activations): Leaving {
    const number = ++this.#number;
    const nothing = { landing: undefined, room: undefined, rows: undefined, computed: false, sent: false };
    const leaving: Leaving = { number, to, id, chunk, ...nothing };
    this.#leaving.set(number, leaving);
    return leaving;
  }

  #isKnown(landing: ReceiveBufferHandle): boolean {
    for (const all of this.#landings.values()) if (all.includes(landing)) return true;
    for (const leaving of this.#leaving.values()) if (leaving.landing === landing) return true;
    return false;
  }

  /** What is computed, has somewhere to go, and waited for that or for room. */
  #sendNext(): void {
    for (const leaving of this.#leaving.values()) {
      const { computed, sent, landing, rows } = leaving;
      if (!computed || sent || landing === undefined) continue;
      leaving.room ??= this.#rooms.take();
      const { room } = leaving;
      if (room === undefined) continue;
      if (rows !== undefined) this.#memory.write(room, rows);
      leaving.rows = undefined;
      this.#count(leaving, landing);
      this.#send(leaving, room, landing, 0);
    }
  }

  #send(leaving: Leaving, room: Int32Array, landing: ReceiveBufferHandle, step: number): void {
    leaving.sent = true;
    const parcels = new Int32Array(pagesOfChunk(this.#memory, leaving.chunk) * 3);
    for (let place = 0; place * 3 < parcels.length; place++) parcels.set([0, room[place], place], 3 * place);
    this.#messenger.send(landing, step, parcels, true);
  }

  #count(leaving: Leaving, landing: ReceiveBufferHandle): void {
    const { to, chunk } = leaving;
    const bytes = (chunk.tokens - chunk.from) * this.#memory.rowValues * Float32Array.BYTES_PER_ELEMENT;
    this.#links.add(to, landing, nameOf(leaving), bytes);
  }

  #drop(leaving: Leaving): void {
    const { number, landing } = leaving;
    this.#leaving.delete(number);
    if (landing !== undefined) this.#givenUp.delete(landing);
    this.#links.settle(nameOf(leaving));
    if (landing !== undefined) this.#messenger.stop(landing);
    this.#giveBack(leaving);
  }

  /** Nothing is read for it any more, so that others may have its room. */
  #giveBack(leaving: Leaving): void {
    const { room } = leaving;
    if (room === undefined) return;
    leaving.room = undefined;
    this.#rooms.release(room);
    this.#sendNext();
  }
}

function nameOf({ number }: Leaving): string {
  return String(number);
}
