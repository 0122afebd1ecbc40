// Whether a prefix is worth copying to a store: where computing it again takes longer than having it sent from there.

/** What is new of how long copies take counts so much. */
const newShare = 1 / 4;
/** Of those that do not seem to be worth it so many are copied all the same, one in this many: what was learned under load need not hold for ever. */
const anyhowEach = 16;

/** What a store was sent took about as long as having it sent back will. Until a copy has been made, one is worth it. */
export class ReplicationWorth {
  #usPerBlock: number | undefined;
  #refused = 0;

  /** @param computeUs predicted for all of the blocks */
  isWorth(blocks: number, computeUs: number): boolean {
    if (this.#usPerBlock === undefined || this.#usPerBlock * blocks < computeUs) return true;
    this.#refused++;
    return this.#refused % anyhowEach === 0;
  }

  /** So many blocks have been copied in this time, waiting for others included. */
  copied(blocks: number, us: number): void {
    if (blocks === 0) return;
    const usPerBlock = us / blocks;
    this.#usPerBlock =
      this.#usPerBlock === undefined ? usPerBlock : this.#usPerBlock + newShare * (usPerBlock - this.#usPerBlock);
  }
}
