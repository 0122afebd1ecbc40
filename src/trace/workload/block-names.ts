// Names of the blocks of generated prompts: prefixes that families of requests share, and blocks of a request's own.

import { exactExp, exactLog } from '../../util/exact-math.ts';
import { Int32List } from '../../util/int32-list.ts';
import type { Prng } from '../../util/prng.ts';

export interface Prefixes {
  /** How many different prefixes there are. */
  readonly families: number;
  /** The k-th most popular one is drawn in proportion to 1 / k ** zipf; 0: all alike. */
  readonly zipf: number;
  /** Share of the prompt that is its family's, in whole blocks. */
  readonly share: number;
}

/** Ids are those of traces: equal ones stand for equal blocks behind equal prefixes. */
export class BlockNames {
  readonly #blockTokens: number;
  readonly #prefixes: Prefixes | undefined;
  readonly #prng: Prng;
  /** (families): probability of this one or one before it. */
  readonly #upTo: Float64Array;
  /** (families): names so far of the prefix, which grows when a longer prompt comes. */
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

  /** Of a prompt that continues none: its family's blocks, then new ones. */
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

  /** Of the k-th most popular family's prefix, behind a prompt of `inputTokens` tokens. */
  prefix(k: number, inputTokens: number): Int32Array {
    const shared = Math.floor(((this.#prefixes?.share ?? 0) * inputTokens) / this.#blockTokens);
    const family = this.#families[k];
    while (family.length < shared) family.push(this.#name());
    return family.raw.slice(0, shared);
  }

  /** Of a prompt that goes on where another of `beforeTokens` tokens ended: a block that was partial is another one now. */
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
