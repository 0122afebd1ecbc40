// How far a prompt has come on its way to another instance: in the order in which its keys and values were put there, and once more where it was halted.
import type { GenerationEvent } from '../cluster/ports.ts';

/** Rounding of rates. */
const byteMin = 0.5;

export class HandOff {
  /** What leaves with the last keys and values. */
  held: readonly GenerationEvent[] = [];
  /** What has not left: before which token it ends, and how many bytes of the stream have left then. */
  #letters: { readonly end: number; readonly upTo: number }[] = [];
  #bytes = 0;
  /** Leading tokens that have left. */
  #left = 0;
  /** It was halted: there it begins once more. */
  #again: number | undefined;

  /** Where tokens `from..end` are to begin; at `end` where they have left. */
  beginOf(from: number, end: number): number {
    const begin = Math.min(end, this.#again ?? from);
    if (begin < end) this.#again = undefined;
    return begin;
  }

  /** Tokens up to `end` are put on the way. */
  add(end: number, bytes: number): void {
    this.#bytes += bytes;
    this.#letters.push({ end, upTo: this.#bytes });
  }

  /** Of the stream since it began, or was halted, so many bytes have left: how many leading tokens have. */
  leftBy(bytes: number): number {
    while (this.#letters.length > 0 && this.#letters[0].upTo <= bytes + byteMin)
      this.#left = this.#letters.shift()?.end ?? this.#left;
    return this.#left;
  }

  /** Nothing leaves any more, and those from `from` on are to leave once more. */
  halt(bytes: number, from: number): void {
    this.#left = Math.min(from, this.leftBy(bytes));
    this.#again = this.#left;
    this.#letters = [];
    this.#bytes = 0;
  }
}
