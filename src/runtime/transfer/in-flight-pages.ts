// Pages that a messenger may still read. A page is reused only after its transfer completes or is stopped.
import type { Messenger, ReceiveBufferHandle } from './messenger.ts';

/** Words of a page descriptor: layer, page, slot. */
const descriptorWords = 3;

/** Pages of one `add`. */
interface Batch {
  /** Descriptors sent to the receive buffer so far, these included. */
  readonly upTo: number;
  /** Position in the stream behind these pages. */
  readonly end: number;
  readonly pages: ReadonlySet<number>;
}

interface Track {
  sent: number;
  batches: Batch[];
  /** Position before which all has arrived. */
  arrived: number;
  /** Where a halted stream resumes; undefined if it is not halted. */
  resume: number | undefined;
  /** The messenger cannot reach the receive buffer. */
  isUnreachable: boolean;
}

type Carrier = Pick<Messenger, 'pending' | 'stop' | 'unreachable'>;

/** Positions in a stream to a receive buffer increase: for a prompt they count tokens. */
export class InFlightPages {
  readonly #messenger: Carrier;
  readonly #tracks = new Map<ReceiveBufferHandle, Track>();
  /** Unreachable receive buffers that were not yet returned. */
  #unreachable = new Set<ReceiveBufferHandle>();

  constructor(messenger: Carrier) {
    this.#messenger = messenger;
  }

  #track(receiveBuffer: ReceiveBufferHandle): Track {
    const track = this.#tracks.get(receiveBuffer) ?? {
      sent: 0,
      batches: [],
      arrived: 0,
      resume: undefined,
      isUnreachable: false,
    };
    this.#tracks.set(receiveBuffer, track);
    return track;
  }

  /** Where sending `from..end` starts: earlier after a halt, and at `end` if all has arrived. */
  resumeAt(receiveBuffer: ReceiveBufferHandle, from: number, end: number): number {
    const track = this.#track(receiveBuffer);
    const begin = Math.min(end, track.resume ?? from);
    if (begin === end) return begin;
    // The halted part is sent now.
    if (track.resume !== undefined) track.batches = [];
    track.resume = undefined;
    return begin;
  }

  /** Registers descriptors, as for `Messenger.send`, up to position `end`. @param again those of them that are sent again, up to their own end */
  add(
    receiveBuffer: ReceiveBufferHandle,
    descriptors: Int32Array,
    end: number,
    again?: { readonly descriptors: Int32Array; readonly end: number },
  ): void {
    const track = this.#track(receiveBuffer);
    track.sent += descriptors.length / descriptorWords;
    // A failed step invalidates what it computes, but not what was sent again with it.
    if (again !== undefined)
      track.batches.push({ upTo: track.sent, end: again.end, pages: pagesOf(again.descriptors) });
    track.batches.push({ upTo: track.sent, end, pages: pagesOf(descriptors) });
  }

  /**
   * When it returns, no page is read for the receive buffer. What has not arrived, and all from `from` on, is sent again later; not to an
   * unreachable buffer, where missing pages would count as arrived.
   */
  halt(receiveBuffer: ReceiveBufferHandle, from: number): void {
    const track = this.#track(receiveBuffer);
    this.#update(receiveBuffer, track);
    this.#pollUnreachable();
    if (track.isUnreachable) return;
    this.#messenger.stop(receiveBuffer);
    track.arrived = Math.min(track.arrived, from);
    track.resume = track.arrived;
    // Their pages will be read again.
    track.batches = track.batches.filter(({ end }) => end <= from);
    track.sent = 0;
  }

  /** When it returns, no page is read for the receive buffer, now or later. */
  stop(receiveBuffer: ReceiveBufferHandle): void {
    this.#tracks.delete(receiveBuffer);
    this.#messenger.stop(receiveBuffer);
  }

  /** Receive buffers that became unreachable since the last call. */
  takeUnreachable(): ReadonlySet<ReceiveBufferHandle> {
    this.#pollUnreachable();
    const unreachable = this.#unreachable;
    this.#unreachable = new Set();
    return unreachable;
  }

  #pollUnreachable(): void {
    for (const receiveBuffer of this.#messenger.unreachable()) {
      this.#unreachable.add(receiveBuffer);
      const track = this.#tracks.get(receiveBuffer);
      if (track !== undefined) track.isUnreachable = true;
    }
  }

  /** True while one of these pages may still be read. */
  isRead(pages: Int32Array): boolean {
    for (const [receiveBuffer, track] of this.#tracks) {
      this.#update(receiveBuffer, track);
      if (track.batches.some((batch) => pages.some((page) => batch.pages.has(page)))) return true;
    }
    return false;
  }

  #update(receiveBuffer: ReceiveBufferHandle, track: Track): void {
    if (track.resume !== undefined) return;
    const done = track.sent - this.#messenger.pending(receiveBuffer);
    while (track.batches.length > 0 && track.batches[0].upTo <= done)
      track.arrived = track.batches.shift()?.end ?? track.arrived;
  }
}

function pagesOf(descriptors: Int32Array): ReadonlySet<number> {
  const pages = new Set<number>();
  for (let at = 1; at < descriptors.length; at += descriptorWords) pages.add(descriptors[at]);
  return pages;
}
