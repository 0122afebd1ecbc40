// The progress of a prompt's keys and values to another instance, in the order of sending, and again from a token on after a halt.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';

/** Tolerance for the rounding of rates. */
const byteMin = 0.5;

/** A range of tokens that has not left completely. */
interface Pending {
  readonly end: number;
  readonly upTo: number;
  readonly rows: ReadonlySet<number> | undefined;
}

export class HandOffProgress {
  readonly kind = 'handoff';
  readonly from: InstanceIndex;
  readonly to: InstanceIndex;
  readonly name: RequestId;
  /** Events that leave with the last keys and values. */
  firstEvents: readonly GenerationEvent[] = [];
  /** In the order of sending: the token after each range, and the bytes of the stream up to its end. */
  #pending: Pending[] = [];
  #bytes = 0;
  /** Number of leading tokens that have left. */
  #left = 0;
  /** After a halt: the token that sending restarts at. */
  #restart: number | undefined;

  constructor(from: InstanceIndex, to: InstanceIndex, name: RequestId) {
    this.from = from;
    this.to = to;
    this.name = name;
  }

  /** Where sending of tokens `from..end` begins; `end` if they have left. */
  beginOf(from: number, end: number): number {
    const begin = Math.min(end, this.#restart ?? from);
    if (begin === end) return begin;
    // The tokens of the halted stream leave now.
    if (this.#restart !== undefined) this.#pending = [];
    this.#restart = undefined;
    return begin;
  }

  /** Adds tokens up to `end`. @param rows page table rows that they are read from; undefined: not tracked */
  add(end: number, bytes: number, rows?: ReadonlySet<number>): void {
    this.#bytes += bytes;
    this.#pending.push({ end, upTo: this.#bytes, rows });
  }

  /** True if one of these rows may still be read when so many bytes have left. */
  reads(bytes: number, rows: readonly number[]): boolean {
    this.leftBy(bytes);
    return this.#pending.some(({ rows: read }) => rows.some((row) => read?.has(row)));
  }

  /** Number of leading tokens that have left, given the bytes that left since the start or the last halt. */
  leftBy(bytes: number): number {
    if (this.#restart !== undefined) return this.#left;
    while (this.#pending.length > 0 && this.#pending[0].upTo <= bytes + byteMin)
      this.#left = this.#pending.shift()?.end ?? this.#left;
    return this.#left;
  }

  /** Stops sending. Tokens from `from` on are sent again. */
  halt(bytes: number, from: number): void {
    this.#left = Math.min(from, this.leftBy(bytes));
    this.#restart = this.#left;
    // The rows of earlier tokens are read again, at their present places.
    this.#pending = this.#pending.filter(({ end }) => end <= from);
    this.#bytes = 0;
  }
}
