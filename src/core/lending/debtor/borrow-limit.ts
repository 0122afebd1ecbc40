// The most that an instance may borrow, as other instances join and leave; longer requests are refused.

interface ReachConfig {
  readonly borrowableBlocks: number;
  readonly hostBlocks?: number | undefined;
}

export class BorrowLimit {
  readonly #hostBlocks: number;
  /** Includes the instance's own host memory. */
  #blocks: number;
  #hasShrunk = false;

  constructor({ borrowableBlocks, hostBlocks = 0 }: ReachConfig) {
    this.#blocks = borrowableBlocks;
    this.#hostBlocks = hostBlocks;
  }

  /** @param lendableBlocks blocks that all other instances together may lend */
  update(lendableBlocks: number): void {
    const blocks = lendableBlocks + this.#hostBlocks;
    this.#hasShrunk ||= blocks < this.#blocks;
    this.#blocks = blocks;
  }

  /** The limit is lower than it once was. */
  get hasShrunk(): boolean {
    return this.#hasShrunk;
  }

  get blocks(): number {
    return this.#blocks;
  }
}

/** Blocks that may stay unused because only whole ranges move: the part beyond home memory may end within one. */
export function slackBlocks(rangeBlocks: number): number {
  return rangeBlocks - 1;
}
