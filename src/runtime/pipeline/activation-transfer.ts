// Rows of the residual stream that go from member to member of a group: native threads write, send and wait for them; what is said here is which pages are whose.
import type { Activations, InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { PendingRows, RowPages } from '../../util/step.ts';
import type { Messenger } from '../transfer/messenger.ts';
import type { ActivationMemory, ActivationWire, ChunkRange } from './activation-memory.ts';
import { ActivationReceiver } from './activation-receiver.ts';
import { ActivationSender } from './activation-sender.ts';

/** Between two looks at what the messenger has given up. */
const lookUs = 1_000_000;
/** Between two looks at whether there is room again. */
const roomUs = 1000;
/** Chunks that are kept where no room is before others are worth waiting for: the next member, which has some, lacks none while these come. */
const heldMax = 4;

export class ActivationTransfer {
  readonly #out: ActivationSender;
  readonly #in: ActivationReceiver;
  #lookedUs = 0;
  /** Somebody was told so, and waits for `news`. */
  #saidFull = false;

  /** @param messenger of that memory alone */
  constructor(memory: ActivationMemory, messenger: Messenger, post: (to: InstanceIndex, wire: ActivationWire) => void) {
    this.#out = new ActivationSender(memory, messenger, post);
    this.#in = new ActivationReceiver(memory, messenger, post);
  }

  /** Chunks on their way, either way: nothing once all requests are over. */
  get inFlight(): number {
    return this.#out.underWay + this.#in.underWay;
  }

  /** Do so many rows wait for room that no other chunk of the request should begin? `news` tells when it is over. */
  isBlocked(id: RequestId): boolean {
    const isHeld = this.#isFull && !this.#out.owes(id);
    this.#saidFull ||= isHeld;
    return isHeld;
  }

  get links(): readonly LinkSnapshot[] {
    return this.#out.links;
  }

  /** Chunks of the request come from there. */
  expect(id: RequestId, from: InstanceIndex): void {
    this.#in.expect(id, from);
  }

  /** Where a step finds the rows of a chunk, now or as soon as they have come. */
  rowsOf(id: RequestId, chunk: ChunkRange): PendingRows {
    return this.#in.rowsOf(id, chunk);
  }

  /** A step has computed with them. */
  used(id: RequestId, chunk: ChunkRange): void {
    this.#in.used(id, chunk);
  }

  /** A step that makes this chunk's rows is about to run: where it is to leave them; undefined: there is no room, and `ended` asks for them. */
  begin(to: InstanceIndex, id: RequestId, chunk: Activations): RowPages | undefined {
    return this.#out.begin(to, id, chunk);
  }

  /** That step has run. @param left what it left in its buffer; undefined: it came to nothing, and runs again or never */
  ended(to: InstanceIndex, id: RequestId, chunk: Activations, left: (() => Float32Array) | undefined): void {
    this.#out.ended(to, id, chunk, left);
  }

  onMessage(from: InstanceIndex, wire: ActivationWire): void {
    if (wire.kind === 'activations') this.#in.hear(from, wire);
    else if (wire.kind === 'activationsBuffer') this.#out.land(from, wire.landing, wire.number);
    else this.#out.unwanted(from, wire.number);
  }

  /** What nobody computes any more neither comes nor leaves. */
  sweep(isComputing: (id: RequestId) => boolean): void {
    this.#in.sweep(isComputing);
    this.#out.sweep(isComputing);
  }

  /** It is gone, or has nothing more of what was under way. */
  onPeerLost(other: InstanceIndex): void {
    this.#in.lost(other);
    this.#out.lost(other);
  }

  /** When to ask for `news` again, if nothing comes before. */
  get nextUs(): number {
    if (this.#in.hasNews || this.#hasRoomAgain) return 0;
    if (this.#out.underWay === 0) return Number.POSITIVE_INFINITY;
    return this.#lookedUs + (this.#out.waitsForRoom ? roomUs : lookUs);
  }

  /** What has come, and what could not be sent for too long. */
  poll(nowUs: number): readonly InstanceEvent[] {
    this.#lookedUs = nowUs;
    const events = [...this.#in.news(), ...this.#out.news()];
    if (!this.#hasRoomAgain) return events;
    this.#saidFull = false;
    return [...events, { kind: 'wake' }];
  }

  get #isFull(): boolean {
    return this.#out.held >= heldMax;
  }

  get #hasRoomAgain(): boolean {
    return this.#saidFull && !this.#isFull;
  }
}
