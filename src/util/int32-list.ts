// A growable list of 32-bit integers in one typed array: token ids, block ids, offsets.

/** Appends are amortised O(1). `view` and `raw` are safe until the next append. */
export class Int32List {
  #items: Int32Array;
  #length = 0;

  constructor(capacity = 16) {
    this.#items = new Int32Array(Math.max(1, capacity));
  }

  static from(items: Int32Array, spare = 0): Int32List {
    const list = new Int32List(items.length + spare);
    list.append(items, 0, items.length);
    return list;
  }

  get length(): number {
    return this.#length;
  }

  /** The backing array: entries behind `length` are undefined. */
  get raw(): Int32Array {
    return this.#items;
  }

  /** `index` must be in range. */
  at(index: number): number {
    return this.#items[index];
  }

  set(index: number, value: number): void {
    this.#items[index] = value;
  }

  push(value: number): void {
    if (this.#length === this.#items.length) this.#grow(this.#length + 1);
    this.#items[this.#length++] = value;
  }

  /** Removes and returns the last item; the list must not be empty. */
  pop(): number {
    return this.#items[--this.#length];
  }

  /** Drops the first `count` items; the list must have as many. */
  shift(count: number): void {
    this.#items.copyWithin(0, count, this.#length);
    this.#length -= count;
  }

  /** Drops `count` items from `index` on; the list must have as many. */
  cut(index: number, count: number): void {
    this.#items.copyWithin(index, index + count, this.#length);
    this.#length -= count;
  }

  append(source: Int32Array, from: number, to: number): void {
    const length = this.#length + to - from;
    if (length > this.#items.length) this.#grow(length);
    if (from === 0 && to === source.length) this.#items.set(source, this.#length);
    else for (let i = from, at = this.#length; i < to; i++, at++) this.#items[at] = source[i];
    this.#length = length;
  }

  /** Drops items behind `length`. */
  truncate(length: number): void {
    this.#length = Math.min(this.#length, length);
  }

  clear(): void {
    this.#length = 0;
  }

  /** A view, not a copy. */
  view(): Int32Array {
    return this.#items.subarray(0, this.#length);
  }

  #grow(least: number): void {
    const items = new Int32Array(Math.max(least, this.#items.length * 2));
    items.set(this.#items.subarray(0, this.#length));
    this.#items = items;
  }
}
