// The simulator's clock and its future events: one queue for a whole simulated world.
import { wideZero } from '../../util/wide-zero.ts';

/** An event that recurs. Each `schedule` adds one call of its handler. */
export interface Timer {
  schedule(timeUs: number): void;
}

/** Keys order the events of one time: timers are below `firstAction`; background events are above `background`, in the same order. */
const firstAction = 2 ** 20;
const background = 2 ** 51;

/**
 * Runs events in order of time. At one time, timers run in the order of their creation, then actions in the order of their insertion, then
 * background events. Background events recur for ever (heartbeats): they run as the others do, but do not keep the simulation alive.
 */
export class EventQueue {
  /** A binary heap: time and key of each entry. */
  #times = new Float64Array(64);
  #keys = new Float64Array(64);
  #size = 0;
  #backgroundSize = 0;
  readonly #handlers: (() => void)[] = [];
  readonly #backgroundHandlers: (() => void)[] = [];
  readonly #actions = new Map<number, () => void>();
  #inserted = 0;
  #nowUs: number = wideZero;

  get nowUs(): number {
    return this.#nowUs;
  }

  /** Time of the first event; Infinity when the queue is empty. */
  get nextUs(): number {
    return this.#size === 0 ? Number.POSITIVE_INFINITY : this.#times[0];
  }

  /** True when only background events are left. */
  get isIdle(): boolean {
    return this.#size === this.#backgroundSize;
  }

  /** At one time, timers run in the order of their creation. */
  timer(handler: () => void): Timer {
    return this.#timerOf(this.#handlers.push(handler) - 1);
  }

  backgroundTimer(handler: () => void): Timer {
    return this.#timerOf(background + this.#backgroundHandlers.push(handler) - 1);
  }

  #timerOf(key: number): Timer {
    return { schedule: (timeUs) => this.#push(timeUs, key) };
  }

  at(timeUs: number, action: () => void): void {
    this.#pushAction(timeUs, 0, action);
  }

  after(delayUs: number, action: () => void): void {
    this.#pushAction(this.#nowUs + delayUs, 0, action);
  }

  afterInBackground(delayUs: number, action: () => void): void {
    this.#pushAction(this.#nowUs + delayUs, background, action);
  }

  #pushAction(timeUs: number, lane: number, action: () => void): void {
    const key = lane + firstAction + this.#inserted++;
    this.#actions.set(key, action);
    this.#push(timeUs, key);
  }

  /** Runs the first event; there must be one. An event in the past runs now. */
  runNext(): void {
    const key = this.#keys[0];
    this.#nowUs = Math.max(this.#nowUs, this.#times[0]);
    this.#pop();
    const inBackground = key >= background;
    if (inBackground) this.#backgroundSize--;
    const position = inBackground ? key - background : key;
    if (position < firstAction) (inBackground ? this.#backgroundHandlers : this.#handlers)[position]();
    else {
      const action = this.#actions.get(key);
      this.#actions.delete(key);
      action?.();
    }
  }

  /** Runs everything due up to and at `timeUs`, with `after` after each event; then it is `timeUs`. */
  runUntil(timeUs: number, after: () => void): void {
    while (this.nextUs <= timeUs) {
      this.runNext();
      after();
    }
    this.#nowUs = timeUs;
  }

  /** Advances the clock; nothing may be due before `timeUs` but events of the background. @throws Error if that time is over */
  skipTo(timeUs: number): void {
    if (timeUs < this.#nowUs) throw new Error(`Cannot simulate: ${timeUs} us is before the present, ${this.#nowUs} us`);
    this.#nowUs = timeUs;
  }

  #push(timeUs: number, key: number): void {
    if (this.#size === this.#times.length) this.#grow();
    if (key >= background) this.#backgroundSize++;
    let position = this.#size++;
    while (position > 0) {
      const parent = (position - 1) >> 1;
      if (!before(timeUs, key, this.#times[parent], this.#keys[parent])) break;
      this.#move(parent, position);
      position = parent;
    }
    this.#times[position] = timeUs;
    this.#keys[position] = key;
  }

  #pop(): void {
    const last = --this.#size;
    if (last <= 0) return;
    const timeUs = this.#times[last];
    const key = this.#keys[last];
    let position = 0;
    for (;;) {
      let child = 2 * position + 1;
      if (child >= last) break;
      if (
        child + 1 < last &&
        before(this.#times[child + 1], this.#keys[child + 1], this.#times[child], this.#keys[child])
      )
        child++;
      if (!before(this.#times[child], this.#keys[child], timeUs, key)) break;
      this.#move(child, position);
      position = child;
    }
    this.#times[position] = timeUs;
    this.#keys[position] = key;
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
