// A binary heap of small integers with their positions, so that any of them can be removed.

/** A strict total order over ids. An object with a method is faster than a function that differs between heaps. */
export interface HeapOrder {
  before(a: number, b: number): boolean;
}

/**
 * Holds ids 0..capacity-1, each at most once. Push, remove and pop are O(log n). A caller that changes the order of an
 * id in the heap calls `moved` at once.
 */
export class IndexedHeap {
  #ids: Int32Array;
  /** (capacity): position in `ids` plus one; 0: not in the heap. */
  #place: Int32Array;
  readonly #order: HeapOrder;
  #size = 0;

  constructor(capacity: number, order: HeapOrder) {
    this.#ids = new Int32Array(capacity);
    this.#place = new Int32Array(capacity);
    this.#order = order;
  }

  get size(): number {
    return this.#size;
  }

  has(id: number): boolean {
    return this.#place[id] !== 0;
  }

  peek(): number | undefined {
    return this.#size === 0 ? undefined : this.#ids[0];
  }

  push(id: number): void {
    if (this.has(id)) throw new Error(`Cannot push onto the heap: it is in the heap already: id ${id}`);
    this.#up(this.#size++, id);
  }

  /** False when the id was not in the heap. */
  remove(id: number): boolean {
    const place = this.#place[id] - 1;
    if (place < 0) return false;
    this.#place[id] = 0;
    const moved = this.#ids[--this.#size];
    if (moved !== id) this.#settle(place, moved);
    return true;
  }

  /** The order of this id alone has changed. Ignored when it is not in the heap. */
  moved(id: number): void {
    const place = this.#place[id] - 1;
    if (place >= 0) this.#settle(place, id);
  }

  /** Makes space for ids below `capacity`, at least as many as before. */
  grow(capacity: number): void {
    const ids = new Int32Array(capacity);
    ids.set(this.#ids);
    this.#ids = ids;
    const place = new Int32Array(capacity);
    place.set(this.#place);
    this.#place = place;
  }

  pop(): number | undefined {
    const first = this.peek();
    if (first !== undefined) this.remove(first);
    return first;
  }

  #settle(place: number, id: number): void {
    const parent = (place - 1) >> 1;
    if (place > 0 && this.#order.before(id, this.#ids[parent])) this.#up(place, id);
    else this.#down(place, id);
  }

  #up(from: number, id: number): void {
    let place = from;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      const above = this.#ids[parent];
      if (!this.#order.before(id, above)) break;
      this.#put(place, above);
      place = parent;
    }
    this.#put(place, id);
  }

  #down(from: number, id: number): void {
    let place = from;
    for (;;) {
      let child = 2 * place + 1;
      if (child >= this.#size) break;
      if (child + 1 < this.#size && this.#order.before(this.#ids[child + 1], this.#ids[child])) child++;
      const below = this.#ids[child];
      if (!this.#order.before(below, id)) break;
      this.#put(place, below);
      place = child;
    }
    this.#put(place, id);
  }

  #put(place: number, id: number): void {
    this.#ids[place] = id;
    this.#place[id] = place + 1;
  }
}
