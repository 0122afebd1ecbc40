// Transfer of activations between members of pipeline groups: assigns buffers, while native threads write, send and wait for them.
import type { Activations, InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { PendingRows, RowPages } from '../../util/step.ts';
import type { Messenger } from '../transfer/messenger.ts';
import type { ActivationMemory, ActivationWire, ChunkRange } from './activation-memory.ts';
import { ActivationReceiver } from './activation-receiver.ts';
import { ActivationSender } from './activation-sender.ts';

/** Interval between checks for unreachable receive buffers. */
const checkUs = 1_000_000;
/** Interval between checks for free send buffers. */
const freeUs = 1000;
/** Chunks kept outside buffers before backpressure: the next member stays busy while they are sent. */
const heldMax = 4;

export class ActivationTransfer {
  readonly #sender: ActivationSender;
  readonly #receiver: ActivationReceiver;
  #checkedUs = 0;
  /** Backpressure was reported; `poll` reports its end. */
  #reportedFull = false;

  /** @param messenger of that memory alone */
  constructor(memory: ActivationMemory, messenger: Messenger, post: (to: InstanceIndex, wire: ActivationWire) => void) {
    this.#sender = new ActivationSender(memory, messenger, post);
    this.#receiver = new ActivationReceiver(memory, messenger, post);
  }

  /** Number of chunks in flight in both directions; 0 once all requests have ended. */
  get inFlight(): number {
    return this.#sender.inFlight + this.#receiver.inFlight;
  }

  /** Backpressure: true while downstream members cannot accept activations of the request. `poll` returns an event when it ends. */
  isBackpressured(id: RequestId): boolean {
    const isBackpressured = this.#isFull && !this.#sender.isRestarting(id);
    this.#reportedFull ||= isBackpressured;
    return isBackpressured;
  }

  get links(): readonly LinkSnapshot[] {
    return this.#sender.links;
  }

  get linkChanges(): number {
    return this.#sender.linkChanges;
  }

  /** Chunks of the request will come from that member. */
  expect(id: RequestId, from: InstanceIndex): void {
    this.#receiver.expect(id, from);
  }

  /** Where a step reads the activations of a chunk, now or once they have arrived. */
  rowsOf(id: RequestId, chunk: ChunkRange): PendingRows {
    return this.#receiver.rowsOf(id, chunk);
  }

  /** A step has read them. */
  used(id: RequestId, chunk: ChunkRange): void {
    this.#receiver.used(id, chunk);
  }

  /** Called before the step that computes the chunk. Returns the pages for its activations; undefined without a free buffer: `ended` then reads them. */
  begin(to: InstanceIndex, id: RequestId, chunk: Activations): RowPages | undefined {
    return this.#sender.begin(to, id, chunk);
  }

  /** Called after that step. @param left reads the activations from the step's own output; undefined: the step failed, and runs again or never */
  ended(to: InstanceIndex, id: RequestId, chunk: Activations, left: (() => Float32Array) | undefined): void {
    this.#sender.ended(to, id, chunk, left);
  }

  onMessage(from: InstanceIndex, wire: ActivationWire): void {
    if (wire.kind === 'activations') this.#receiver.onAnnounced(from, wire);
    else if (wire.kind === 'activationsBuffer') this.#sender.onBuffer(from, wire.receiveBuffer, wire.number);
    else this.#sender.onCancelled(from, wire.number);
  }

  /** Releases the chunks of requests that are no longer computed here. */
  sweep(isComputing: (id: RequestId) => boolean): void {
    this.#receiver.sweep(isComputing);
    this.#sender.sweep(isComputing);
  }

  /** A member is lost, or has started a new session. */
  onPeerLost(other: InstanceIndex): void {
    this.#receiver.onPeerLost(other);
    this.#sender.onPeerLost(other);
  }

  /** A member is lost, and its index is never used again. */
  onPeerEnded(other: InstanceIndex): void {
    this.#receiver.onPeerLost(other);
    this.#sender.onPeerEnded(other);
  }

  /** Time of the next `poll`, if nothing happens before. */
  get nextUs(): number {
    if (this.#receiver.hasEvents || this.#isUnblocked) return 0;
    if (this.#sender.inFlight === 0) return Number.POSITIVE_INFINITY;
    return this.#checkedUs + (this.#sender.waitsForBuffer ? freeUs : checkUs);
  }

  /** Events of received chunks and unreachable members. */
  poll(nowUs: number): readonly InstanceEvent[] {
    this.#checkedUs = nowUs;
    const events = [...this.#receiver.poll(), ...this.#sender.poll()];
    if (!this.#isUnblocked) return events;
    this.#reportedFull = false;
    return [...events, { kind: 'wake' }];
  }

  get #isFull(): boolean {
    return this.#sender.held >= heldMax;
  }

  get #isUnblocked(): boolean {
    return this.#reportedFull && !this.#isFull;
  }
}
