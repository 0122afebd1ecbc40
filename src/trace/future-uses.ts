// The times at which a workload uses its blocks, for eviction policies that use the future (Belady's MIN).
import type { FutureUses } from '../core/kvcache/eviction.ts';
import { Int32List } from '../util/int32-list.ts';

/** Memory: 12 bytes per use, and an entry of a map per block. */
export class BlockUses implements FutureUses {
  /** Keys by the first word of a block's digest, which is unique in a workload. */
  readonly #keys = new Map<number, number>();
  /** (keys): the first use that is not over, and the last one. */
  readonly #first = new Int32List(1024);
  readonly #last = new Int32List(1024);
  /** (uses): the next use of the same block; -1: there is none. */
  readonly #next = new Int32List(1024);
  readonly #atUs: number[] = [];

  /** Adds a use, in order of time. */
  add(word: number, atUs: number): void {
    const use = this.#next.length;
    this.#next.push(-1);
    this.#atUs.push(atUs);
    const key = this.#keys.get(word);
    if (key === undefined) {
      this.#keys.set(word, this.#first.length);
      this.#first.push(use);
      this.#last.push(use);
      return;
    }
    this.#next.set(this.#last.at(key), use);
    this.#last.set(key, use);
  }

  keyOf(words: Uint32Array, at: number): number {
    return this.#keys.get(words[at]) ?? -1;
  }

  nextUs(key: number, nowUs: number): number {
    if (key < 0) return Number.POSITIVE_INFINITY;
    let use = this.#first.at(key);
    while (use >= 0 && this.#atUs[use] <= nowUs) use = this.#next.at(use);
    // Uses that are over stay so: time never decreases. The last one is kept, so that the search ends there.
    this.#first.set(key, use >= 0 ? use : this.#last.at(key));
    return use >= 0 ? this.#atUs[use] : Number.POSITIVE_INFINITY;
  }
}
