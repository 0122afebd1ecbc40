// Which requests are admitted while this creditor makes room for another instance's prompt.

interface Waiting {
  readonly waiting: readonly { readonly arrival: number }[];
}

/**
 * A prompt is held back by one hold, never by two: a request that waits when a hold ends is admitted during the next.
 */
export class AdmissionHold {
  /** The last hold seen; `passUpTo`: the last request that waited when the hold before it ended. */
  #hold: number | undefined;
  #passUpTo = -1;

  /** @param hold the current hold */
  look(hold: number | undefined, batch: Waiting | undefined): void {
    if (hold === this.#hold) return;
    if (this.#hold !== undefined) {
      for (const { arrival } of batch?.waiting ?? []) this.#passUpTo = Math.max(this.#passUpTo, arrival);
    }
    this.#hold = hold;
  }

  /** True if a request with this arrival number may start. */
  admits(arrival: number): boolean {
    return this.#hold === undefined || arrival <= this.#passUpTo;
  }
}
