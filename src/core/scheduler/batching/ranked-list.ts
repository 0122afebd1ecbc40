// A list of sequences in order of rank.
import { outranks, type Sequence } from './sequence.ts';

/** A sorted array: with hundreds of entries, moving its tail is cheaper than a tree. */
export class RankedList {
  readonly #items: Sequence[] = [];

  get items(): readonly Sequence[] {
    return this.#items;
  }

  get length(): number {
    return this.#items.length;
  }

  get last(): Sequence | undefined {
    return this.#items.at(-1);
  }

  insert(sequence: Sequence): void {
    this.#items.splice(this.#indexOf(sequence), 0, sequence);
  }

  remove(sequence: Sequence): void {
    const place = this.#indexOf(sequence);
    if (this.#items[place] !== sequence)
      throw new Error(`Cannot remove a sequence: it is not listed: arrival ${sequence.arrival}`);
    this.#items.splice(place, 1);
  }

  /** Number of sequences before it. */
  #indexOf(sequence: Sequence): number {
    let low = 0;
    let high = this.#items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (outranks(this.#items[middle], sequence)) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Index of the first batch job in a ranked list: batch jobs are last. */
export function firstBackground(sequences: readonly Sequence[]): number {
  let first = sequences.length;
  while (first > 0 && sequences[first - 1].background) first--;
  return first;
}
