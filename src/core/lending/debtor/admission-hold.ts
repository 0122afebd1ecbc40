// Which requests an instance admits while it holds memory for a prompt of another instance.

interface Waiting {
  readonly waiting: readonly { readonly arrival: number }[];
}

/** A hold never delays a request that an earlier one has delayed: a request that waits when a hold ends is admitted during the next. */
export class AdmissionHold {
  /** The current hold; `#admittedUpTo`: the last request that waited when the previous hold ended. */
  #hold: number | undefined;
  #admittedUpTo = -1;

  /** @param hold number of the current hold; undefined: none */
  update(hold: number | undefined, batch: Waiting | undefined): void {
    if (hold === this.#hold) return;
    if (this.#hold !== undefined) {
      for (const { arrival } of batch?.waiting ?? []) this.#admittedUpTo = Math.max(this.#admittedUpTo, arrival);
    }
    this.#hold = hold;
  }

  /** True if a request with this arrival number may start. */
  admits(arrival: number): boolean {
    return this.#hold === undefined || arrival <= this.#admittedUpTo;
  }
}
