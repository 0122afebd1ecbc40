// The checks of one structure that are due: repeated checks skip a structure that has not changed.

/** Most calls between two checks of a structure that counts no change: they find changes that it does not count. */
const callsBetween = 16;

export class CheckInterval {
  #changes = -1;
  #skipped = 0;

  /** True if the structure must be checked now. @param changes the number of its changes so far */
  isDue(changes: number): boolean {
    if (changes === this.#changes && ++this.#skipped < callsBetween) return false;
    this.#changes = changes;
    this.#skipped = 0;
    return true;
  }
}
