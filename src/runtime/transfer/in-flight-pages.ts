// What a messenger may still read of what was put on its ways: whoever gives such pages to somebody else waits until it does not, or stops it.
import type { Messenger, ReceiveBufferHandle } from './messenger.ts';

/** Layer, page, place. */
const parcelWords = 3;

interface Letters {
  /** Parcels so far, these included. */
  readonly upTo: number;
  /** They are of what lies before this. */
  readonly end: number;
  readonly pages: ReadonlySet<number>;
}

interface Track {
  sent: number;
  letters: Letters[];
  /** All before this has arrived. */
  arrived: number;
  /** It was halted: there it begins once more. */
  again: number | undefined;
  /** The messenger has given it up. */
  lost: boolean;
}

type Carrier = Pick<Messenger, 'pending' | 'stop' | 'unreachable'>;

/** What goes to a landing goes in order: tokens of a prompt, or whatever is counted. */
export class InFlightPages {
  readonly #messenger: Carrier;
  readonly #tracks = new Map<ReceiveBufferHandle, Track>();
  /** Landings that were given up, of which nobody has been told. */
  #untold = new Set<ReceiveBufferHandle>();

  constructor(messenger: Carrier) {
    this.#messenger = messenger;
  }

  #track(landing: ReceiveBufferHandle): Track {
    const track = this.#tracks.get(landing) ?? { sent: 0, letters: [], arrived: 0, again: undefined, lost: false };
    this.#tracks.set(landing, track);
    return track;
  }

  /** Where what is to leave, `from..end`, is to begin: earlier after a halt, and at `end` where it has arrived. */
  resumeAt(landing: ReceiveBufferHandle, from: number, end: number): number {
    const track = this.#track(landing);
    const begin = Math.min(end, track.again ?? from);
    if (begin === end) return begin;
    // What was to leave once more leaves now.
    if (track.again !== undefined) track.letters = [];
    track.again = undefined;
    return begin;
  }

  /** What lies before `end` leaves for a landing, behind what was sent before. @param parcels as for `Messenger.send` @param again those of them that leave once more, and before what they lie */
  add(
    landing: ReceiveBufferHandle,
    parcels: Int32Array,
    end: number,
    again?: { readonly parcels: Int32Array; readonly end: number },
  ): void {
    const track = this.#track(landing);
    track.sent += parcels.length / parcelWords;
    // A step that comes to nothing takes back what it was to compute, and not what it was sent with.
    if (again !== undefined) track.letters.push({ upTo: track.sent, end: again.end, pages: pagesOf(again.parcels) });
    track.letters.push({ upTo: track.sent, end, pages: pagesOf(parcels) });
  }

  /**
   * Once this returns nothing is read for the landing any more. What has not arrived, and what lies from `from` on, is to leave once more; not
   * where the messenger has given it up: what is missing there would be taken for arrived.
   */
  halt(landing: ReceiveBufferHandle, from: number): void {
    const track = this.#track(landing);
    this.#look(landing, track);
    this.#hearGivenUp();
    if (track.lost) return;
    this.#messenger.stop(landing);
    track.arrived = Math.min(track.arrived, from);
    track.again = track.arrived;
    // Their pages are read again, from where they lie.
    track.letters = track.letters.filter(({ end }) => end <= from);
    track.sent = 0;
  }

  /** Once this returns nothing is read for the landing any more, or ever again. */
  stop(landing: ReceiveBufferHandle): void {
    this.#tracks.delete(landing);
    this.#messenger.stop(landing);
  }

  /** Landings that the messenger has given up since the last call. */
  takeUnreachable(): ReadonlySet<ReceiveBufferHandle> {
    this.#hearGivenUp();
    const untold = this.#untold;
    this.#untold = new Set();
    return untold;
  }

  #hearGivenUp(): void {
    for (const landing of this.#messenger.unreachable()) {
      this.#untold.add(landing);
      const track = this.#tracks.get(landing);
      if (track !== undefined) track.lost = true;
    }
  }

  /** May one of these pages still be read? */
  isRead(pages: Int32Array): boolean {
    for (const [landing, track] of this.#tracks) {
      this.#look(landing, track);
      if (track.letters.some((letters) => pages.some((page) => letters.pages.has(page)))) return true;
    }
    return false;
  }

  #look(landing: ReceiveBufferHandle, track: Track): void {
    if (track.again !== undefined) return;
    const left = track.sent - this.#messenger.pending(landing);
    while (track.letters.length > 0 && track.letters[0].upTo <= left)
      track.arrived = track.letters.shift()?.end ?? track.arrived;
  }
}

function pagesOf(parcels: Int32Array): ReadonlySet<number> {
  const pages = new Set<number>();
  for (let at = 1; at < parcels.length; at += parcelWords) pages.add(parcels[at]);
  return pages;
}
