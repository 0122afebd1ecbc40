// How far a prompt has come on its way to another instance: in the order in which its keys and values were put there, and once more where it was halted.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';

/** Rounding of rates. */
const byteMin = 0.5;

interface Letters {
  readonly end: number;
  readonly upTo: number;
  readonly rows: ReadonlySet<number> | undefined;
}

export class HandOffProgress {
  readonly kind = 'handoff';
  readonly from: InstanceIndex;
  readonly to: InstanceIndex;
  readonly name: RequestId;
  /** What leaves with the last keys and values. */
  held: readonly GenerationEvent[] = [];
  /** What has not left: before which token it ends, and how many bytes of the stream have left then. */
  #letters: Letters[] = [];
  #bytes = 0;
  /** Leading tokens that have left. */
  #left = 0;
  /** It was halted: there it begins once more. */
  #again: number | undefined;

  constructor(from: InstanceIndex, to: InstanceIndex, name: RequestId) {
    this.from = from;
    this.to = to;
    this.name = name;
  }

  /** Where tokens `from..end` are to begin; at `end` where they have left. */
  beginOf(from: number, end: number): number {
    const begin = Math.min(end, this.#again ?? from);
    if (begin === end) return begin;
    // What was to leave once more leaves now.
    if (this.#again !== undefined) this.#letters = [];
    this.#again = undefined;
    return begin;
  }

  /** Tokens up to `end` are put on the way. @param rows of the page table that they are read from; undefined: nobody asks */
  add(end: number, bytes: number, rows?: ReadonlySet<number>): void {
    this.#bytes += bytes;
    this.#letters.push({ end, upTo: this.#bytes, rows });
  }

  /** Is one of these rows still to be read? So many bytes have left. */
  reads(bytes: number, rows: readonly number[]): boolean {
    this.leftBy(bytes);
    return this.#letters.some((letters) => rows.some((row) => letters.rows?.has(row)));
  }

  /** Of the stream since it began, or was halted, so many bytes have left: how many leading tokens have. */
  leftBy(bytes: number): number {
    if (this.#again !== undefined) return this.#left;
    while (this.#letters.length > 0 && this.#letters[0].upTo <= bytes + byteMin)
      this.#left = this.#letters.shift()?.end ?? this.#left;
    return this.#left;
  }

  /** Nothing leaves any more, and those from `from` on are to leave once more. */
  halt(bytes: number, from: number): void {
    this.#left = Math.min(from, this.leftBy(bytes));
    this.#again = this.#left;
    // Their rows are read again, from where they lie.
    this.#letters = this.#letters.filter(({ end }) => end <= from);
    this.#bytes = 0;
  }
}
