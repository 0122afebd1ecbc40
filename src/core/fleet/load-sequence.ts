// The numbered readings of a load that an engine pushes: the latest one counts, for a limited time.

/**
 * SGLang repeats an unchanged reading each second. Steps in between are longer only with prompts of many thousand tokens,
 * and then polling takes over.
 */
const freshUs = 3_000_000;

/** A reading is whole: one that is lost is superseded by the next. */
export class LoadSequence {
  #last: number | undefined;
  #receivedUs = Number.NEGATIVE_INFINITY;

  /** The connection is established, for the first time or again: an engine that has started anew numbers from 0. */
  connected(): void {
    this.#last = undefined;
  }

  /** False: the reading is doubled, or older than the latest one. After a silence any number is taken. */
  received(nowUs: number, number: number): boolean {
    if (this.#last !== undefined && number <= this.#last && this.isFresh(nowUs)) return false;
    this.#last = number;
    this.#receivedUs = nowUs;
    return true;
  }

  /** The latest reading holds: the load need not be polled. */
  isFresh(nowUs: number): boolean {
    return nowUs - this.#receivedUs <= freshUs;
  }
}
