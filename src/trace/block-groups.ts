// Small ids of blocks for the ids in a file, which may be large or of smaller blocks.
import { scramble } from '../util/scramble.ts';

/**
 * Ids of larger blocks from those of smaller ones. Groups of equal ids behind equal groups have equal ids. Groups are compared by 53 bits: among
 * a million, two different ones have the same id with a probability of 6 in 100,000.
 */
export class BlockGroups {
  readonly #size: number;
  readonly #names = new Map<number, number>();
  #next = 0;

  constructor(size: number) {
    this.#size = size;
  }

  /** @param count of larger blocks; those behind the last of `ids` are new ones */
  take(ids: readonly number[], count: number): Int32Array {
    const names = new Int32Array(ids.length === 0 ? 0 : count);
    let [low, high] = [0x9e3779b9, 0x85ebca6b];
    for (let i = 0; i < names.length; i++) {
      const group = ids.slice(i * this.#size, (i + 1) * this.#size);
      for (const id of group) {
        low = scramble(low ^ (id | 0)) ^ Math.floor(id / 2 ** 32);
        high = scramble(Math.imul(high, 31) ^ low ^ id);
      }
      const key = (high >>> 11) * 2 ** 32 + (low >>> 0);
      const known = group.length === 0 ? undefined : this.#names.get(key);
      names[i] = known ?? this.#next++;
      if (known === undefined && group.length > 0) this.#names.set(key, names[i]);
    }
    return names;
  }
}
