// Words in memory that an instance's thread shares with the one that started it: by them whoever comes stops a step in flight that is to stop for him.

/** Another value than 0 stops the step in flight: kernels poll it. */
const stopWord = 0;
/** The step in flight is one of batch jobs alone. */
export const backgroundWord = 1;
/** It waits for rows of a group, and computes nothing. Kernels clear it when rows are there. */
const waitingWord = 2;
/** How many of each have come. */
const cameWords = { request: 3, end: 4 } as const;
const words = 5;

/** A request that somebody waits for; the end of a request, or of an instance. */
export type InterruptReason = keyof typeof cameWords;

/** What steps stop for that somebody does not have to wait for their end. */
export interface StepKind {
  /** Of batch jobs alone: it stops for requests. */
  readonly background: boolean;
  /** It begins with a wait: until that is over it stops for all. */
  readonly waiting: boolean;
}

/**
 * Nobody is overlooked between hearing and running: who comes is counted, then looks whether a step is there that stops for him; who begins a step
 * says so, then looks whether more have come than he has heard of. All accesses are in one order, so one of the two sees the other.
 */
export class StepInterrupt {
  /** What kernels poll and clear. */
  readonly polled: Int32Array;
  readonly #heard: Record<InterruptReason, number> = { request: 0, end: 0 };

  /** @param polled over shared memory: of the other end */
  constructor(polled: Int32Array = new Int32Array(new SharedArrayBuffer(words * Int32Array.BYTES_PER_ELEMENT))) {
    this.polled = polled;
  }

  /** Of whoever runs steps, before it hears what was said until now: that stops no step that comes after. */
  acknowledge(): void {
    Atomics.store(this.polled, stopWord, 0);
    this.#heard.request = this.#came('request');
    this.#heard.end = this.#came('end');
  }

  /** A step is about to run. Those that came since `hears` may have been heard, or not: it stops for them at once. */
  stepBegins({ background: jobs, waiting: waits }: StepKind): void {
    Atomics.store(this.polled, backgroundWord, Number(jobs));
    Atomics.store(this.polled, waitingWord, Number(waits));
    const isNew = (comer: InterruptReason): boolean => this.#came(comer) !== this.#heard[comer];
    if (((jobs || waits) && isNew('request')) || (waits && isNew('end'))) this.stop();
  }

  stepEnded(): void {
    Atomics.store(this.polled, backgroundWord, 0);
    Atomics.store(this.polled, waitingWord, 0);
  }

  /** The step in flight, or the next one if none has begun since `hears`. */
  stop(): void {
    Atomics.store(this.polled, stopWord, 1);
  }

  /** Of others: what was said of one has been said. */
  notify(comer: InterruptReason): void {
    Atomics.add(this.polled, cameWords[comer], 1);
    const jobs = comer === 'request' && Atomics.load(this.polled, backgroundWord) === 1;
    if (jobs || Atomics.load(this.polled, waitingWord) === 1) this.stop();
  }

  #came(comer: InterruptReason): number {
    return Atomics.load(this.polled, cameWords[comer]);
  }
}
