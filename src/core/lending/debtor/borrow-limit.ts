// The most that an instance may borrow, as other instances join and leave; longer requests are refused.

interface BorrowLimitConfig {
  readonly borrowableBlocks: number;
  readonly hostBlocks?: number | undefined;
}

export class BorrowLimit {
  readonly #hostBlocks: number;
  /** Includes the instance's own host memory. */
  #blocks: number;
  #hasShrunk = false;

  constructor({ borrowableBlocks, hostBlocks = 0 }: BorrowLimitConfig) {
    this.#blocks = borrowableBlocks;
    this.#hostBlocks = hostBlocks;
  }

  /** @param lendableBlocks blocks that all other instances together may lend */
  update(lendableBlocks: number): void {
    const blocks = lendableBlocks + this.#hostBlocks;
    this.#hasShrunk ||= blocks < this.#blocks;
    this.#blocks = blocks;
  }

  /** The limit has fallen at least once. */
  get hasShrunk(): boolean {
    return this.#hasShrunk;
  }

  get blocks(): number {
    return this.#blocks;
  }
}

/** Blocks that may stay unused because only whole ranges move: the blocks outside home may end within a range. */
export function slackBlocks(rangeBlocks: number): number {
  return rangeBlocks - 1;
}
