// What drives a state machine: a timer for its `nextUs`, the monotonic clock, and a step that cannot lose its alarm.

/** Microseconds by the thread's monotonic clock. */
export function nowUs(): number {
  return Math.round(performance.now() * 1000);
}

/** Timers of Node count in 32 bits. */
const delayMsMax = 2 ** 31 - 1;

/**
 * Carries out the effects of one step of a state machine, then calls `finish`, which sets its alarm. A step or an effect that throws loses
 * neither the other effects nor the alarm. @throws the first error
 */
export function carryOutStep<Effect>(
  step: () => Iterable<Effect>,
  carryOut: (effect: Effect) => void,
  finish: () => void,
): void {
  const errors: unknown[] = [];
  try {
    for (const effect of step()) {
      try {
        carryOut(effect);
      } catch (error) {
        errors.push(error);
      }
    }
  } catch (error) {
    errors.push(error);
  } finally {
    finish();
  }
  if (errors.length > 0) throw errors[0];
}

export class Alarm {
  readonly #onAlarm: () => void;
  #timer: NodeJS.Timeout | undefined;
  #atUs = Number.POSITIVE_INFINITY;

  constructor(onAlarm: () => void) {
    this.#onAlarm = onAlarm;
  }

  /** Replaces the deadline; infinite: none. The alarm may fire early; the callback then sets it again. */
  set(atUs: number): void {
    if (atUs === this.#atUs) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#atUs = atUs;
    if (atUs === Number.POSITIVE_INFINITY) return;
    const delayMs = Math.min(delayMsMax, Math.max(0, Math.ceil((atUs - nowUs()) / 1000)));
    this.#timer = setTimeout(() => {
      this.#atUs = Number.POSITIVE_INFINITY;
      this.#onAlarm();
    }, delayMs);
    // A pending alarm does not keep the process alive.
    this.#timer.unref();
  }
}
