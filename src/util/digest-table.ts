// An open-addressing map from 128-bit digests (four words) to small integers, in typed arrays.

const keyWords = 4;

/** Keys are digests, so their first word is spread well enough to be the slot. Values are 0..2^31-2. Lookups allocate nothing. */
export class DigestTable {
  #mask: number;
  #keys: Uint32Array;
  /** Value plus one; 0: the slot is empty. */
  #values: Int32Array;
  #size = 0;

  constructor(capacity = 64) {
    const slots = 2 ** Math.max(4, Math.ceil(Math.log2(capacity * 2)));
    this.#mask = slots - 1;
    this.#keys = new Uint32Array(slots * keyWords);
    this.#values = new Int32Array(slots);
  }

  get size(): number {
    return this.#size;
  }

  /** The value of the key at `words[at..at+4]`. */
  get(words: Uint32Array, at: number): number | undefined {
    const value = this.#values[this.#find(words, at)];
    return value === 0 ? undefined : value - 1;
  }

  set(words: Uint32Array, at: number, value: number): void {
    const slot = this.#find(words, at);
    if (this.#values[slot] === 0) this.#insert(slot, words, at, value);
    else this.#values[slot] = value + 1;
  }

  /** The value of the key where it has one; else sets it, and returns undefined. */
  getOrSet(words: Uint32Array, at: number, value: number): number | undefined {
    const slot = this.#find(words, at);
    const known = this.#values[slot];
    if (known !== 0) return known - 1;
    this.#insert(slot, words, at, value);
    return undefined;
  }

  /** False when the key was not there. */
  delete(words: Uint32Array, at: number): boolean {
    const slot = this.#find(words, at);
    if (this.#values[slot] === 0) return false;
    this.#clear(slot);
    return true;
  }

  /** Deletes the key only where it has this value; says whether it had. */
  deleteIf(words: Uint32Array, at: number, value: number): boolean {
    const slot = this.#find(words, at);
    if (this.#values[slot] !== value + 1) return false;
    this.#clear(slot);
    return true;
  }

  #insert(place: number, words: Uint32Array, at: number, value: number): void {
    let slot = place;
    if (this.#size * 2 >= this.#mask) {
      this.#grow();
      slot = this.#find(words, at);
    }
    this.#size++;
    copyKey(this.#keys, slot * keyWords, words, at);
    this.#values[slot] = value + 1;
  }

  #clear(place: number): void {
    let hole = place;
    this.#size--;
    // Backward shift: whoever probed past the hole moves into it, so no tombstones gather.
    for (let slot = (hole + 1) & this.#mask; this.#values[slot] !== 0; slot = (slot + 1) & this.#mask) {
      const home = this.#keys[slot * keyWords] & this.#mask;
      if (((slot - home) & this.#mask) < ((slot - hole) & this.#mask)) continue;
      this.#move(slot, hole);
      hole = slot;
    }
    this.#values[hole] = 0;
  }

  #find(words: Uint32Array, at: number): number {
    const keys = this.#keys;
    const w0 = words[at];
    for (let slot = w0 & this.#mask; ; slot = (slot + 1) & this.#mask) {
      if (this.#values[slot] === 0) return slot;
      const k = slot * keyWords;
      if (
        keys[k] === w0 &&
        keys[k + 1] === words[at + 1] &&
        keys[k + 2] === words[at + 2] &&
        keys[k + 3] === words[at + 3]
      )
        return slot;
    }
  }

  #move(from: number, to: number): void {
    this.#values[to] = this.#values[from];
    copyKey(this.#keys, to * keyWords, this.#keys, from * keyWords);
  }

  #grow(): void {
    const keys = this.#keys;
    const values = this.#values;
    this.#mask = values.length * 2 - 1;
    this.#keys = new Uint32Array(values.length * 2 * keyWords);
    this.#values = new Int32Array(values.length * 2);
    this.#size = 0;
    for (let slot = 0; slot < values.length; slot++) {
      const value = values[slot];
      if (value !== 0) this.set(keys, slot * keyWords, value - 1);
    }
  }
}

function copyKey(to: Uint32Array, toAt: number, from: Uint32Array, fromAt: number): void {
  for (let i = 0; i < keyWords; i++) to[toAt + i] = from[fromAt + i];
}
