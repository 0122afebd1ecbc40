// What is to happen in a small world: actions in order of time, then of when they were entered.
import { EventHeap } from '../engine/event-heap.ts';

export class Agenda {
  readonly #heap = new EventHeap();
  readonly #actions = new Map<number, () => void>();
  #entered = 0;
  #nowUs = 0;

  get nowUs(): number {
    return this.#nowUs;
  }

  at(timeUs: number, action: () => void): void {
    const key = this.#entered++;
    this.#actions.set(key, action);
    this.#heap.push(Math.max(timeUs, this.#nowUs), key);
  }

  after(delayUs: number, action: () => void): void {
    this.at(this.#nowUs + delayUs, action);
  }

  /** Does everything due up to and at `timeUs`, with `then` after each action. */
  runTo(timeUs: number, then: () => void): void {
    while (this.#heap.size > 0 && this.#heap.nextUs <= timeUs) {
      this.#nowUs = this.#heap.nextUs;
      const key = this.#heap.nextKey;
      this.#heap.pop();
      const action = this.#actions.get(key);
      this.#actions.delete(key);
      action?.();
      then();
    }
    this.#nowUs = timeUs;
  }
}
