// How much an instance may borrow at most, as others come and go: longer requests are refused.
import type { InstanceId } from '../../policy/lending/terms.ts';

interface ReachConfig {
  readonly borrowableBlocks: number;
  readonly lendableBlocks?: readonly number[] | undefined;
  readonly hostBlocks?: number | undefined;
}

export class Reach {
  readonly #config: ReachConfig;
  /** With them went so much of what could be borrowed. */
  readonly #gone = new Set<InstanceId>();
  /** Others are of other processes, and may lend so much together. */
  #told: number | undefined;
  #hasShrunk = false;

  constructor(config: ReachConfig) {
    this.#config = config;
  }

  lost(instance: InstanceId): void {
    this.#gone.add(instance);
    this.#hasShrunk = true;
  }

  tell(blocks: number): void {
    this.#hasShrunk ||= blocks < (this.#told ?? 0);
    this.#told = blocks;
  }

  /** Less may be borrowed than once. */
  get hasShrunk(): boolean {
    return this.#hasShrunk;
  }

  get blocks(): number {
    if (this.#told !== undefined) return this.#told + (this.#config.hostBlocks ?? 0);
    const { borrowableBlocks, lendableBlocks = [] } = this.#config;
    let blocks = borrowableBlocks;
    for (const instance of this.#gone) blocks -= lendableBlocks[instance] ?? 0;
    return blocks;
  }
}

/** Blocks that may stay unused because only whole ranges go: what exceeds home ends within one. */
export function slackBlocks(rangeBlocks: number): number {
  return rangeBlocks - 1;
}
