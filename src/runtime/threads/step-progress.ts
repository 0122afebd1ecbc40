// The progress of a compute thread in shared memory: stamped by the thread, observed by the main thread.
import type { WorkProgress } from '../../core/membership/step-watchdog.ts';
import { progressWords, waitingWord } from './step-interrupt.ts';

/** Predictions are in milliseconds, up to 24 days. */
const predictedMsMax = 2 ** 31 - 1;

export class StepProgress {
  readonly #flags: Int32Array;
  /** Nesting of `work`: a handler of a message may run the loop. */
  #depth = 0;

  /** @param flags the shared memory of a StepInterrupt */
  constructor(flags: Int32Array) {
    this.#flags = flags;
  }

  /** Called by the thread: runs what does not return to its event loop for a while. */
  work(run: () => void): void {
    this.advance();
    if (this.#depth++ === 0) Atomics.store(this.#flags, progressWords.busy, 1);
    try {
      run();
    } finally {
      if (--this.#depth === 0) Atomics.store(this.#flags, progressWords.busy, 0);
      this.advance();
    }
  }

  /** Called by the thread: it has done a part of its work. */
  advance(): void {
    Atomics.add(this.#flags, progressWords.count, 1);
  }

  /** Called by the thread before a step. */
  stepBegins(predictedUs: number): void {
    const predictedMs = Math.min(predictedMsMax, Math.ceil(predictedUs / 1000));
    Atomics.store(this.#flags, progressWords.predictedMs, predictedMs);
    this.advance();
  }

  stepEnded(): void {
    Atomics.store(this.#flags, progressWords.predictedMs, 0);
    this.advance();
  }

  /** Called by other threads. */
  read(): WorkProgress {
    const load = (word: number): number => Atomics.load(this.#flags, word);
    return {
      // Unsigned: it passes 2^31 in some months.
      count: load(progressWords.count) >>> 0,
      isBusy: load(progressWords.busy) === 1,
      isWaiting: load(waitingWord) === 1,
      predictedUs: 1000 * load(progressWords.predictedMs),
    };
  }
}
