// What is to be done at its time, in the order of being asked for: messages that arrive, clients that come again.
import type { EventHeap } from './event-heap.ts';

export class EventQueue {
  readonly #heap: EventHeap;
  /** Keys from here on are actions. */
  readonly #firstKey: number;
  readonly #actions = new Map<number, () => void>();
  #entered = 0;

  constructor(heap: EventHeap, firstKey: number) {
    this.#heap = heap;
    this.#firstKey = firstKey;
  }

  at(timeUs: number, action: () => void): void {
    const key = this.#firstKey + this.#entered++;
    this.#actions.set(key, action);
    this.#heap.push(timeUs, key);
  }

  /** What stands in the heap under this key. */
  do(key: number): void {
    const action = this.#actions.get(key);
    this.#actions.delete(key);
    action?.();
  }
}
