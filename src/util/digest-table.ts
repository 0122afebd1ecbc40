// Open-addressing maps from 128-bit digests (four words) to small integers: one has the digests, the other finds those of its caller.
import { digestWords } from './blake2s.ts';

/**
 * (slots, 5 words): digest; value plus one, 0: empty slot. Words of a lookup are adjacent, since tables exceed caches.
 */
const slotWords = 5;
const valueAt = 4;
/** The word of a digest that selects its slot. */
export const placeAt = 1;

/**
 * Keys are digests. Their second word selects the slot (`placeAt`): digests of contents are uniform, and those of
 * simulated blocks place neighbours side by side. Values are 0..2^31-2. Lookups allocate nothing.
 */
export class DigestTable {
  #mask: number;
  #words: Uint32Array;
  #size = 0;

  constructor(capacity = 64) {
    const slots = 2 ** Math.max(4, Math.ceil(Math.log2(capacity * 2)));
    this.#mask = slots - 1;
    this.#words = new Uint32Array(slots * slotWords);
  }

  get size(): number {
    return this.#size;
  }

  /** The value of the key at `words[at..at+4]`. */
  get(words: Uint32Array, at: number): number | undefined {
    const value = this.#words[this.#find(words, at) + valueAt];
    return value === 0 ? undefined : value - 1;
  }

  set(words: Uint32Array, at: number, value: number): void {
    const place = this.#find(words, at);
    if (this.#words[place + valueAt] === 0) this.#insert(place, words, at, value);
    else this.#words[place + valueAt] = value + 1;
  }

  /** The value of the key if it is present; else sets it, and returns undefined. */
  getOrSet(words: Uint32Array, at: number, value: number): number | undefined {
    const place = this.#find(words, at);
    const known = this.#words[place + valueAt];
    if (known !== 0) return known - 1;
    this.#insert(place, words, at, value);
    return undefined;
  }

  /** False when the key was not present. */
  delete(words: Uint32Array, at: number): boolean {
    const place = this.#find(words, at);
    if (this.#words[place + valueAt] === 0) return false;
    this.#clear(place);
    return true;
  }

  /** Deletes the key only if it has this value; true if it did. */
  deleteIf(words: Uint32Array, at: number, value: number): boolean {
    const place = this.#find(words, at);
    if (this.#words[place + valueAt] !== value + 1) return false;
    this.#clear(place);
    return true;
  }

  #insert(found: number, words: Uint32Array, at: number, value: number): void {
    let place = found;
    if (this.#size * 2 >= this.#mask) {
      this.#grow();
      place = this.#find(words, at);
    }
    this.#size++;
    const table = this.#words;
    table[place] = words[at];
    table[place + 1] = words[at + 1];
    table[place + 2] = words[at + 2];
    table[place + 3] = words[at + 3];
    table[place + valueAt] = value + 1;
  }

  /** Backward shift: entries that probed past the hole move into it, so there are no tombstones. */
  #clear(place: number): void {
    const table = this.#words;
    const mask = this.#mask;
    let hole = place / slotWords;
    this.#size--;
    for (let slot = (hole + 1) & mask; table[slot * slotWords + valueAt] !== 0; slot = (slot + 1) & mask) {
      const home = table[slot * slotWords + placeAt] & mask;
      if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
      for (let i = 0; i < slotWords; i++) table[hole * slotWords + i] = table[slot * slotWords + i];
      hole = slot;
    }
    table[hole * slotWords + valueAt] = 0;
  }

  /** The first word of the key's slot, or of the empty slot for it. */
  #find(words: Uint32Array, at: number): number {
    const table = this.#words;
    const mask = this.#mask;
    const w0 = words[at];
    for (let slot = words[at + placeAt] & mask; ; slot = (slot + 1) & mask) {
      const place = slot * slotWords;
      if (table[place + valueAt] === 0) return place;
      if (
        table[place] === w0 &&
        table[place + 1] === words[at + 1] &&
        table[place + 2] === words[at + 2] &&
        table[place + 3] === words[at + 3]
      )
        return place;
    }
  }

  #grow(): void {
    const before = this.#words;
    this.#mask = 2 * (this.#mask + 1) - 1;
    this.#words = new Uint32Array(2 * before.length);
    this.#size = 0;
    for (let place = 0; place < before.length; place += slotWords) {
      const value = before[place + valueAt];
      if (value !== 0) this.set(before, place, value - 1);
    }
  }
}

/**
 * Finds digests that lie in an array of its caller, (digests, 4 words), by their content: 4 bytes for each slot, where a
 * `DigestTable` has 20. A digest must not change while it is indexed. Lookups allocate nothing.
 */
export class DigestIndex {
  /** Slots minus one: the low bits of an entry, and of the word that selects a slot. */
  #mask: number;
  /** (slots): the digest's number plus one in the low bits, its selecting word in the high bits; 0: empty slot. */
  #entries: Int32Array;
  #size = 0;

  constructor(capacity = 64) {
    const slots = 2 ** Math.max(4, Math.ceil(Math.log2(capacity * 2)));
    this.#mask = slots - 1;
    this.#entries = new Int32Array(slots);
  }

  get size(): number {
    return this.#size;
  }

  /** The number among `digests` of the digest at `words[at..at+4]`, if it is indexed. */
  get(digests: Uint32Array, words: Uint32Array, at: number): number | undefined {
    const entries = this.#entries;
    const mask = this.#mask;
    const place = words[at + placeAt];
    for (let slot = place & mask; ; slot = (slot + 1) & mask) {
      const entry = entries[slot];
      if (entry === 0) return undefined;
      if (((entry ^ place) & ~mask) !== 0) continue;
      const number = (entry & mask) - 1;
      const k = number * digestWords;
      if (
        digests[k] === words[at] &&
        digests[k + 1] === place &&
        digests[k + 2] === words[at + 2] &&
        digests[k + 3] === words[at + 3]
      )
        return number;
    }
  }

  /** Indexes digest `number` of `digests`; an equal one must not be indexed. */
  insert(digests: Uint32Array, number: number): void {
    while (this.#size * 2 >= this.#mask || number >= this.#mask) this.#grow(digests);
    this.#size++;
    this.#put(digests, number);
  }

  /** Digest `number` of `digests` must be indexed. */
  delete(digests: Uint32Array, number: number): void {
    const entries = this.#entries;
    const mask = this.#mask;
    let hole = digests[number * digestWords + placeAt] & mask;
    while ((entries[hole] & mask) !== number + 1) {
      if (entries[hole] === 0) throw new Error(`Cannot delete a digest: it is not indexed: digest ${number}`);
      hole = (hole + 1) & mask;
    }
    this.#size--;
    // Backward shift, as in a `DigestTable`.
    for (let slot = (hole + 1) & mask; entries[slot] !== 0; slot = (slot + 1) & mask) {
      const home = digests[((entries[slot] & mask) - 1) * digestWords + placeAt] & mask;
      if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
      entries[hole] = entries[slot];
      hole = slot;
    }
    entries[hole] = 0;
  }

  #put(digests: Uint32Array, number: number): void {
    const place = digests[number * digestWords + placeAt];
    let slot = place & this.#mask;
    while (this.#entries[slot] !== 0) slot = (slot + 1) & this.#mask;
    this.#entries[slot] = (place & ~this.#mask) | (number + 1);
  }

  #grow(digests: Uint32Array): void {
    const before = this.#entries;
    const maskBefore = this.#mask;
    this.#mask = 2 * (this.#mask + 1) - 1;
    this.#entries = new Int32Array(2 * before.length);
    for (const entry of before) if (entry !== 0) this.#put(digests, (entry & maskBefore) - 1);
  }
}
