// The next requests of sessions, in order of time.

/** The next request of a session; its prompt extends the one before. */
export interface Conversation {
  readonly arrivalUs: number;
  readonly inputTokens: number;
  readonly before: Int32Array;
  readonly beforeTokens: number;
}

/** A binary heap; at equal times in the order of insertion. */
export class TurnQueue {
  readonly #items: { readonly turn: Conversation; readonly order: number }[] = [];
  #added = 0;

  /** Infinity when it is empty. */
  get nextUs(): number {
    return this.#items[0]?.turn.arrivalUs ?? Number.POSITIVE_INFINITY;
  }

  add(turn: Conversation): void {
    const items = this.#items;
    items.push({ turn, order: this.#added++ });
    for (let place = items.length - 1; place > 0; ) {
      const parent = (place - 1) >> 1;
      if (!this.#before(place, parent)) return;
      this.#swap(place, parent);
      place = parent;
    }
  }

  /** Removes the first entry; there must be one. */
  take(): Conversation {
    const items = this.#items;
    this.#swap(0, items.length - 1);
    const taken = items.pop();
    if (taken === undefined) throw new Error('Cannot take a turn: no session is under way');
    for (let place = 0; ; ) {
      let child = 2 * place + 1;
      if (child >= items.length) return taken.turn;
      if (child + 1 < items.length && this.#before(child + 1, child)) child++;
      if (!this.#before(child, place)) return taken.turn;
      this.#swap(place, child);
      place = child;
    }
  }

  #before(a: number, b: number): boolean {
    const [first, second] = [this.#items[a], this.#items[b]];
    const apart = first.turn.arrivalUs - second.turn.arrivalUs;
    return apart < 0 || (apart === 0 && first.order < second.order);
  }

  #swap(a: number, b: number): void {
    const items = this.#items;
    [items[a], items[b]] = [items[b], items[a]];
  }
}
