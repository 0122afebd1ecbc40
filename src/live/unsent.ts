// Pages that a messenger may still read for some landing: whoever gives them to somebody else waits until it does not.
import type { LandingHandle, Messenger } from './messenger.ts';

/** Layer, page, place. */
const parcelWords = 3;

interface Letters {
  /** Parcels so far, these included. */
  readonly upTo: number;
  readonly pages: ReadonlySet<number>;
}

interface Track {
  sent: number;
  letters: Letters[];
}

export class Unsent {
  readonly #messenger: Pick<Messenger, 'left'>;
  readonly #tracks = new Map<LandingHandle, Track>();

  constructor(messenger: Pick<Messenger, 'left'>) {
    this.#messenger = messenger;
  }

  /** These leave for a landing, behind what was sent before. @param parcels as for `Messenger.send` */
  add(landing: LandingHandle, parcels: Int32Array): void {
    const track = this.#tracks.get(landing) ?? { sent: 0, letters: [] };
    this.#tracks.set(landing, track);
    track.sent += parcels.length / parcelWords;
    const pages = new Set<number>();
    for (let at = 1; at < parcels.length; at += parcelWords) pages.add(parcels[at]);
    track.letters.push({ upTo: track.sent, pages });
  }

  /** Nothing is sent there any more. */
  forget(landing: LandingHandle): void {
    this.#tracks.delete(landing);
  }

  /** May one of these pages still be read? */
  reads(pages: Int32Array): boolean {
    for (const [landing, track] of this.#tracks) {
      const arrived = track.sent - this.#messenger.left(landing);
      track.letters = track.letters.filter(({ upTo }) => upTo > arrived);
      if (track.letters.some((letters) => pages.some((page) => letters.pages.has(page)))) return true;
    }
    return false;
  }
}
