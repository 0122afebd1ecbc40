// Shared-memory flags that interrupt the running step, beside the words of its progress.

// The words of the abort array. Every other text about them refers to this table.
/** A value other than 0 stops the running step: kernels poll it. */
const stopWord = 0;
/** 1 while a step of batch jobs alone runs. */
export const backgroundWord = 1;
/** 1 while the step waits for activations of its group. Kernels clear it when they have arrived. */
export const waitingWord = 2;
/** Counters of notifications, by reason. Kernels neither read nor write them. */
const counterWords = { request: 3, cancelOrLoss: 4 } as const;
/** Written by the thread, read by its watchdog (`StepProgress`). */
export const progressWords = { count: 5, busy: 6, predictedMs: 7 } as const;
const words = 8;

/** `request`: an interactive request has arrived. `cancelOrLoss`: a request was cancelled, or an instance is lost. */
export type InterruptReason = keyof typeof counterWords;

/** Which notifications interrupt a step. */
export interface StepKind {
  /** A step of batch jobs alone: requests interrupt it. */
  readonly background: boolean;
  /** The step begins with a wait, which every notification interrupts. */
  readonly waiting: boolean;
}

/**
 * No notification is lost between reading the bus and running a step. A notifier increments its counter, then checks for a step to interrupt;
 * the thread publishes its step, then checks for new notifications. The accesses are sequentially consistent, so at least one of the two detects the other.
 */
export class StepInterrupt {
  /** The flags that kernels poll and clear. */
  readonly polled: Int32Array;
  readonly #acknowledged: Record<InterruptReason, number> = { request: 0, cancelOrLoss: 0 };

  /** @param polled the flags of the other side; new ones unless given */
  constructor(polled: Int32Array = new Int32Array(new SharedArrayBuffer(words * Int32Array.BYTES_PER_ELEMENT))) {
    this.polled = polled;
  }

  /** Called by the thread before it reads the bus: earlier notifications interrupt no later step. */
  acknowledge(): void {
    Atomics.store(this.polled, stopWord, 0);
    this.#acknowledged.request = this.#count('request');
    this.#acknowledged.cancelOrLoss = this.#count('cancelOrLoss');
  }

  /** Called by the thread before a step. Notifications since `acknowledge` may be unread: they interrupt the step at once. */
  stepBegins({ background, waiting }: StepKind): void {
    Atomics.store(this.polled, backgroundWord, Number(background));
    Atomics.store(this.polled, waitingWord, Number(waiting));
    const isNew = (reason: InterruptReason): boolean => this.#count(reason) !== this.#acknowledged[reason];
    if (((background || waiting) && isNew('request')) || (waiting && isNew('cancelOrLoss'))) this.stop();
  }

  stepEnded(): void {
    Atomics.store(this.polled, backgroundWord, 0);
    Atomics.store(this.polled, waitingWord, 0);
  }

  /** Interrupts the running step, or the next one if none has begun since `acknowledge`. */
  stop(): void {
    Atomics.store(this.polled, stopWord, 1);
  }

  /** Called by other threads, after they have sent the message. */
  notify(reason: InterruptReason): void {
    Atomics.add(this.polled, counterWords[reason], 1);
    const background = reason === 'request' && Atomics.load(this.polled, backgroundWord) === 1;
    if (background || Atomics.load(this.polled, waitingWord) === 1) this.stop();
  }

  #count(reason: InterruptReason): number {
    return Atomics.load(this.polled, counterWords[reason]);
  }
}
