// Who is let in while room is made for another instance's prompt.

interface Waiting {
  readonly waiting: readonly { readonly arrival: number }[];
}

/** One hold keeps a prompt out, not two: who waits when one ends is let in during the next. */
export class AdmissionHold {
  /** The hold that was met last, and who came before the one before it ended. */
  #hold: number | undefined;
  #passUpTo = -1;

  /** @param hold the one that there is now */
  look(hold: number | undefined, batch: Waiting | undefined): void {
    if (hold === this.#hold) return;
    if (this.#hold !== undefined) {
      for (const { arrival } of batch?.waiting ?? []) this.#passUpTo = Math.max(this.#passUpTo, arrival);
    }
    this.#hold = hold;
  }

  /** May one that came as that one start? */
  admits(arrival: number): boolean {
    return this.#hold === undefined || arrival <= this.#passUpTo;
  }
}
