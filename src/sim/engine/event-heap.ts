// What is to happen, in order of time; at one time in order of kind, then of subject, so that the order never depends on who asked first.

/** Events are numbers to their owner: a kind and a subject. At most one event of a kind and subject is in at a time. */
export class EventHeap {
  /** Packed by slot: time, and kind and subject as one number. */
  #times = new Float64Array(64);
  #keys = new Float64Array(64);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Microseconds of the first event; Infinity when none is in. */
  get nextUs(): number {
    return this.#size === 0 ? Number.POSITIVE_INFINITY : this.#times[0];
  }

  /** Key of the first event. */
  get nextKey(): number {
    return this.#keys[0];
  }

  /** `key` orders events of one time; equal keys at one time have no order. */
  push(timeUs: number, key: number): void {
    if (this.#size === this.#times.length) this.#grow();
    let place = this.#size++;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      if (!before(timeUs, key, this.#times[parent], this.#keys[parent])) break;
      this.#move(parent, place);
      place = parent;
    }
    this.#times[place] = timeUs;
    this.#keys[place] = key;
  }

  /** Removes the first event. */
  pop(): void {
    const last = --this.#size;
    if (last <= 0) return;
    const timeUs = this.#times[last];
    const key = this.#keys[last];
    let place = 0;
    for (;;) {
      let child = 2 * place + 1;
      if (child >= last) break;
      if (
        child + 1 < last &&
        before(this.#times[child + 1], this.#keys[child + 1], this.#times[child], this.#keys[child])
      )
        child++;
      if (!before(this.#times[child], this.#keys[child], timeUs, key)) break;
      this.#move(child, place);
      place = child;
    }
    this.#times[place] = timeUs;
    this.#keys[place] = key;
  }

  #move(from: number, to: number): void {
    this.#times[to] = this.#times[from];
    this.#keys[to] = this.#keys[from];
  }

  #grow(): void {
    const times = new Float64Array(this.#size * 2);
    const keys = new Float64Array(this.#size * 2);
    times.set(this.#times);
    keys.set(this.#keys);
    this.#times = times;
    this.#keys = keys;
  }
}

function before(timeA: number, keyA: number, timeB: number, keyB: number): boolean {
  return timeA < timeB || (timeA === timeB && keyA < keyB);
}
