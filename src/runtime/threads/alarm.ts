// Wakes a machine when it asked to be woken: a timer over its `nextUs`, on the clock that machines are told.

/** Microseconds by the thread's monotonic clock. */
export function nowUs(): number {
  return Math.round(performance.now() * 1000);
}

/** Timers of Node count in 32 bits. */
const delayMsMax = 2 ** 31 - 1;

export class Alarm {
  readonly #ring: () => void;
  #timer: NodeJS.Timeout | undefined;
  #atUs = Number.POSITIVE_INFINITY;

  constructor(ring: () => void) {
    this.#ring = ring;
  }

  /** Rings once it is `atUs`, and no more at what it was set to before; infinite: never. It may ring too early, then it is to be set again. */
  set(atUs: number): void {
    if (atUs === this.#atUs) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#atUs = atUs;
    if (atUs === Number.POSITIVE_INFINITY) return;
    const delayMs = Math.min(delayMsMax, Math.max(0, Math.ceil((atUs - nowUs()) / 1000)));
    this.#timer = setTimeout(() => {
      this.#atUs = Number.POSITIVE_INFINITY;
      this.#ring();
    }, delayMs);
    // What is only waited for must not keep the process alive.
    this.#timer.unref();
  }
}
