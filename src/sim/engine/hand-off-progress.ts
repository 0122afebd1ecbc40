// The progress of a hand-off: which tokens have left, in the order of sending; after a halt, sending restarts from an earlier token.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';

/** Fewer bytes count as none: rates are rounded. */
const byteMin = 0.5;

/** A range of tokens that has not left completely. */
interface Pending {
  readonly end: number;
  readonly upTo: number;
  readonly blocks: ReadonlySet<number> | undefined;
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
  #tokensSent = 0;
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

  /** Adds tokens up to `end`. @param blocks that hold them; undefined: not tracked */
  add(end: number, bytes: number, blocks?: ReadonlySet<number>): void {
    this.#bytes += bytes;
    this.#pending.push({ end, upTo: this.#bytes, blocks });
  }

  /** True if one of these blocks may still be read. @param bytes that have left since the start or the last halt */
  reads(bytes: number, blocks: readonly number[]): boolean {
    this.tokensSentBy(bytes);
    return this.#pending.some(({ blocks: read }) => blocks.some((block) => read?.has(block)));
  }

  /** Number of leading tokens that have left. @param bytes that have left since the start or the last halt */
  tokensSentBy(bytes: number): number {
    if (this.#restart !== undefined) return this.#tokensSent;
    while (this.#pending.length > 0 && this.#pending[0].upTo <= bytes + byteMin)
      this.#tokensSent = this.#pending.shift()?.end ?? this.#tokensSent;
    return this.#tokensSent;
  }

  /** Stops sending. Tokens from `from` on are sent again. */
  halt(bytes: number, from: number): void {
    this.#tokensSent = Math.min(from, this.tokensSentBy(bytes));
    this.#restart = this.#tokensSent;
    // Tokens from `from` on are read again, from the blocks that hold them then.
    this.#pending = this.#pending.filter(({ end }) => end <= from);
    this.#bytes = 0;
  }
}
