// Detects a compute thread that hangs: from its counter of work and the predicted time of its step, as another thread
// of the process observes them.

/** What a compute thread publishes of its work. */
export interface WorkProgress {
  /** Grows with each begin and end of a step, and of other work of the thread. */
  readonly count: number;
  /** The thread works; false: it waits for messages. */
  readonly isBusy: boolean;
  /** The step waits for activations of another instance, for an unknown time. */
  readonly isWaiting: boolean;
  /** Predicted time of the running step; 0 outside of steps. */
  readonly predictedUs: number;
}

export interface WatchdogConfig {
  /** A thread that advances within this time does not hang, whatever the prediction. */
  readonly floorUs: number;
  /** Multiple of the prediction after which a longer step hangs. */
  readonly multiple: number;
  /** Interval of observations. */
  readonly pollUs: number;
}

/** A prompt chunk takes a second on slow machines, and a sanitizer makes it some ten times slower. */
export const defaultWatchdog: WatchdogConfig = { floorUs: 60_000_000, multiple: 20, pollUs: 1_000_000 };

/** A thread that has not advanced. */
export interface Stall {
  readonly stalledUs: number;
  readonly limitUs: number;
  readonly predictedUs: number;
}

/** The running step of an instance, for its heartbeats. */
export interface StepState {
  /** As in `WorkProgress`. */
  readonly count: number;
  /** 0 outside of steps. */
  readonly predictedUs: number;
  /** Time for which the thread has worked without advancing: clocks of hosts differ, so no end of the step is stated. */
  readonly stalledUs: number;
}

/** A step that takes this long, and this multiple of its prediction, is overdue: new requests avoid its instance. */
const overdueUs = 5_000_000;
const overdueMultiple = 5;

/** True if the running step takes far longer than predicted. False for figures that are no numbers. */
export function isOverdue({ predictedUs, stalledUs }: StepState): boolean {
  return stalledUs >= overdueUs && stalledUs >= overdueMultiple * predictedUs;
}

/**
 * Counts the time in which the thread has worked without advancing. The time between two observations counts for at
 * most two intervals: a process that was suspended, or did not get the processor, does not take its own pause for a
 * stall.
 */
export class StepWatchdog {
  readonly #config: WatchdogConfig;
  #observedUs: number | undefined;
  #count = -1;
  #stalledUs = 0;
  #predictedUs = 0;

  constructor(config: WatchdogConfig = defaultWatchdog) {
    this.#config = config;
  }

  /** As of the last observation. */
  get step(): StepState {
    return { count: Math.max(0, this.#count), predictedUs: this.#predictedUs, stalledUs: this.#stalledUs };
  }

  /** `nowUs` never decreases. Returns the stall if the thread hangs. */
  observe(nowUs: number, { count, isBusy, isWaiting, predictedUs }: WorkProgress): Stall | undefined {
    const { floorUs, multiple, pollUs } = this.#config;
    const sinceUs = Math.min(nowUs - (this.#observedUs ?? nowUs), 2 * pollUs);
    const advances = !isBusy || isWaiting || count !== this.#count;
    this.#observedUs = nowUs;
    this.#count = count;
    this.#predictedUs = predictedUs;
    this.#stalledUs = advances ? 0 : this.#stalledUs + sinceUs;
    const limitUs = Math.max(floorUs, multiple * predictedUs);
    return this.#stalledUs < limitUs ? undefined : { stalledUs: this.#stalledUs, limitUs, predictedUs };
  }
}
