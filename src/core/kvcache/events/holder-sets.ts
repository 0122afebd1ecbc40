// Bit sets of instances, for the few blocks that many instances hold.

/** Sets are numbered, opened and closed; the numbers of closed sets are reused. */
export class HolderSets {
  readonly #wordsOfSet: number;
  /** (sets, wordsOfSet) */
  #words: Uint32Array;
  readonly #free: number[] = [];
  #sets = 0;

  constructor(instances: number) {
    this.#wordsOfSet = Math.ceil(instances / 32);
    this.#words = new Uint32Array(16 * this.#wordsOfSet);
  }

  /** Open sets. */
  get size(): number {
    return this.#sets - this.#free.length;
  }

  /** Opens an empty set. */
  open(): number {
    const set = this.#free.pop() ?? this.#sets++;
    if ((set + 1) * this.#wordsOfSet > this.#words.length) {
      const grown = new Uint32Array(2 * this.#words.length);
      grown.set(this.#words);
      this.#words = grown;
    }
    return set;
  }

  close(set: number): void {
    this.#words.fill(0, set * this.#wordsOfSet, (set + 1) * this.#wordsOfSet);
    this.#free.push(set);
  }

  has(set: number, instance: number): boolean {
    return (this.#words[set * this.#wordsOfSet + (instance >> 5)] & (1 << (instance & 31))) !== 0;
  }

  /** False when the instance was in the set. */
  add(set: number, instance: number): boolean {
    if (this.has(set, instance)) return false;
    this.#flip(set, instance);
    return true;
  }

  /** False when the instance was not in the set. */
  remove(set: number, instance: number): boolean {
    if (!this.has(set, instance)) return false;
    this.#flip(set, instance);
    return true;
  }

  /** Writes the members to `out`, lowest first; returns how many. */
  list(set: number, out: Int32Array): number {
    let count = 0;
    for (let i = 0; i < this.#wordsOfSet; i++) {
      for (let left = this.#words[set * this.#wordsOfSet + i]; left !== 0; left &= left - 1) {
        out[count++] = 32 * i + 31 - Math.clz32(left & -left);
      }
    }
    return count;
  }

  #flip(set: number, instance: number): void {
    const at = set * this.#wordsOfSet + (instance >> 5);
    this.#words[at] = this.#words[at] ^ (1 << (instance & 31));
  }
}
