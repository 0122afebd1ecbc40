// How much an instance may borrow at most, as others come and go: longer requests are refused.

interface ReachConfig {
  readonly borrowableBlocks: number;
  readonly hostBlocks?: number | undefined;
}

export class BorrowLimit {
  readonly #hostBlocks: number;
  /** Of its own host memory too. */
  #blocks: number;
  #hasShrunk = false;

  constructor({ borrowableBlocks, hostBlocks = 0 }: ReachConfig) {
    this.#blocks = borrowableBlocks;
    this.#hostBlocks = hostBlocks;
  }

  /** All others may lend so many together. */
  update(lendableBlocks: number): void {
    const blocks = lendableBlocks + this.#hostBlocks;
    this.#hasShrunk ||= blocks < this.#blocks;
    this.#blocks = blocks;
  }

  /** Less may be borrowed than once. */
  get hasShrunk(): boolean {
    return this.#hasShrunk;
  }

  get blocks(): number {
    return this.#blocks;
  }
}

/** Blocks that may stay unused because only whole ranges go: what exceeds home ends within one. */
export function slackBlocks(rangeBlocks: number): number {
  return rangeBlocks - 1;
}
