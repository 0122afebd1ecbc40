// A map for entries that come and go all the time: the next collection of the young generation frees a deleted value.

/**
 * As `Map`. V8 replaces the table of a `Map` after every few insertions, and the earlier table keeps its values and a
 * pointer to the next one: once a table is in the old generation, all values since stay until that is collected.
 */
export class SlotMap<K extends string | number, V> {
  readonly #slots = new Map<K, number>();
  /** (slots) */
  readonly #values: (V | undefined)[] = [];
  readonly #free: number[] = [];

  get size(): number {
    return this.#slots.size;
  }

  has(key: K): boolean {
    return this.#slots.has(key);
  }

  get(key: K): V | undefined {
    const slot = this.#slots.get(key);
    return slot === undefined ? undefined : this.#values[slot];
  }

  set(key: K, value: V): void {
    let slot = this.#slots.get(key);
    if (slot === undefined) {
      slot = this.#free.pop() ?? this.#values.length;
      this.#slots.set(key, slot);
    }
    this.#values[slot] = value;
  }

  /** False: there is none. */
  delete(key: K): boolean {
    const slot = this.#slots.get(key);
    if (slot === undefined) return false;
    this.#slots.delete(key);
    this.#values[slot] = undefined;
    this.#free.push(slot);
    return true;
  }

  clear(): void {
    for (const key of [...this.#slots.keys()]) this.delete(key);
  }

  /** In the order of insertion, as the keys of a `Map`. */
  keys(): IterableIterator<K> {
    return this.#slots.keys();
  }

  *values(): IterableIterator<V> {
    for (const slot of this.#slots.values()) yield this.#values[slot] as V;
  }

  *[Symbol.iterator](): IterableIterator<readonly [K, V]> {
    for (const [key, slot] of this.#slots) yield [key, this.#values[slot] as V];
  }
}
