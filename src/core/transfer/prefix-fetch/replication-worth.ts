// Decides whether a prefix is worth copying to a store: recomputing it must take longer than fetching it.

/** Weight of the newest copy in the mean. */
const newShare = 1 / 4;
/** One in so many prefixes that are not worth it is copied in any case: times learned under load may change. */
const probeEach = 16;

/** A fetch takes about as long as the copy to the store took. Before the first copy, every prefix is worth it. */
export class ReplicationWorth {
  #usPerBlock: number | undefined;
  #refused = 0;

  /** @param computeUs predicted time to compute all blocks */
  isWorth(blocks: number, computeUs: number): boolean {
    if (this.#usPerBlock === undefined || this.#usPerBlock * blocks < computeUs) return true;
    this.#refused++;
    return this.#refused % probeEach === 0;
  }

  /** Learns from a copy: so many blocks in this time, waiting included. */
  copied(blocks: number, us: number): void {
    if (blocks === 0) return;
    const usPerBlock = us / blocks;
    this.#usPerBlock =
      this.#usPerBlock === undefined ? usPerBlock : this.#usPerBlock + newShare * (usPerBlock - this.#usPerBlock);
  }
}
