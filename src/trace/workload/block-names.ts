// Block ids of generated prompts: prefixes shared by families of requests, and unique blocks.

import { exactExp, exactLog } from '../../util/exact-math.ts';
import { Int32List } from '../../util/int32-list.ts';
import type { Prng } from '../../util/prng.ts';

export interface Prefixes {
  /** Number of distinct prefixes. */
  readonly families: number;
  /** The k-th most popular one is drawn in proportion to 1 / k ** zipf; 0: uniformly. */
  readonly zipf: number;
  /** Share of the prompt that belongs to its family, in whole blocks. */
  readonly share: number;
}

/** As in traces, equal ids mean equal blocks behind equal prefixes. */
export class BlockNames {
  readonly #blockTokens: number;
  readonly #prefixes: Prefixes | undefined;
  readonly #prng: Prng;
  /** (families): cumulative probability. */
  readonly #upTo: Float64Array;
  /** (families): ids of the prefix so far; it grows with longer prompts. */
  readonly #families: readonly Int32List[];
  #next = 0;

  constructor(prefixes: Prefixes | undefined, blockTokens: number, prng: Prng) {
    this.#blockTokens = blockTokens;
    this.#prefixes = prefixes;
    this.#prng = prng;
    const { families, zipf } = prefixes ?? { families: 0, zipf: 0 };
    this.#families = Array.from({ length: families }, () => new Int32List());
    this.#upTo = cumulative(families, zipf);
  }

  /** A new prompt: its family's blocks, then unique ones. */
  fresh(inputTokens: number): Int32Array {
    const full = Math.floor(inputTokens / this.#blockTokens);
    const shared = Math.min(full, Math.round(((this.#prefixes?.share ?? 0) * inputTokens) / this.#blockTokens));
    const names = new Int32Array(Math.ceil(inputTokens / this.#blockTokens));
    if (shared > 0) {
      const family = this.#families[this.#drawFamily()];
      while (family.length < shared) family.push(this.#name());
      names.set(family.raw.subarray(0, shared));
    }
    return this.#fill(names, shared);
  }

  /** The k-th most popular family's prefix of a prompt of `inputTokens` tokens. */
  prefix(k: number, inputTokens: number): Int32Array {
    const shared = Math.floor(((this.#prefixes?.share ?? 0) * inputTokens) / this.#blockTokens);
    const family = this.#families[k];
    while (family.length < shared) family.push(this.#name());
    return family.raw.slice(0, shared);
  }

  /** A prompt that continues another of `beforeTokens` tokens. The last block, if partial, has a new id. */
  continued(before: Int32Array, beforeTokens: number, inputTokens: number): Int32Array {
    const kept = Math.floor(beforeTokens / this.#blockTokens);
    const names = new Int32Array(Math.ceil(inputTokens / this.#blockTokens));
    names.set(before.subarray(0, kept));
    return this.#fill(names, kept);
  }

  #fill(names: Int32Array, from: number): Int32Array {
    for (let i = from; i < names.length; i++) names[i] = this.#name();
    return names;
  }

  #name(): number {
    if (this.#next === 2 ** 31) throw new Error('Cannot generate: no block ids are left: 2147483648 are in use');
    return this.#next++;
  }

  #drawFamily(): number {
    const drawn = this.#prng.uniform();
    let low = 0;
    let high = this.#upTo.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (drawn < this.#upTo[middle]) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function cumulative(families: number, zipf: number): Float64Array {
  const upTo = new Float64Array(families);
  let sum = 0;
  for (let k = 0; k < families; k++) {
    sum += exactExp(-zipf * exactLog(k + 1));
    upTo[k] = sum;
  }
  return upTo.map((value) => value / sum);
}
