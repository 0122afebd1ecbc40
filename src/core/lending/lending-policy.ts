// When an instance borrows, returns, lends and recalls: pure functions of its own memory figures.

import type { MemoryTotals } from '../kvcache/lending-memory.ts';

export interface LendingPolicy {
  /** Largest share of a memory that may be lent. */
  readonly lentShareMax: number;
  /** Low-water mark: an instance below it starts to borrow, and never lends these blocks. */
  readonly lowWaterBlocks: number;
  /**
   * High-water mark of available and idle borrowed blocks together: above it, idle ones are returned. At least
   * `loanBlocksMin` above the low-water mark.
   */
  readonly highWaterBlocks: number;
  /** Below this number of available blocks, lent blocks are recalled. */
  readonly recallBlocks: number;
  /** How far ahead growth is predicted; about the time that a loan takes. */
  readonly lookAheadUs: number;
  /** Smallest number of blocks of one loan. */
  readonly loanBlocksMin: number;
  /** Largest share of a creditor's step, in thousandths, for attention over blocks that it has lent. */
  readonly remoteAttentionPermilleMax: number;
  /**
   * Blocks are lent, moved and returned in multiples of this number, so that an attention range lies at one creditor.
   * Default 1.
   */
  readonly unitBlocks?: number;
}

/** The largest multiple of the unit that is at most `blocks`. */
export function wholeUnits(blocks: number, { unitBlocks = 1 }: Pick<LendingPolicy, 'unitBlocks'>): number {
  return blocks - (blocks % unitBlocks);
}

/** The smallest multiple of the unit that is at least `blocks`. */
export function upToUnits(blocks: number, { unitBlocks = 1 }: Pick<LendingPolicy, 'unitBlocks'>): number {
  return Math.ceil(blocks / unitBlocks) * unitBlocks;
}

/** Blocks that can be lent now. */
export function blocksLendable({ total, available, lent }: MemoryTotals, policy: LendingPolicy): number {
  const byShare = Math.floor(total * policy.lentShareMax) - lent;
  return wholeUnits(Math.max(0, Math.min(byShare, available - policy.lowWaterBlocks)), policy);
}

/** Blocks by which running sequences grow while a loan is arranged. */
function growthAhead(growthBlocksPerSecond: number, policy: LendingPolicy): number {
  return Math.ceil((growthBlocksPerSecond * policy.lookAheadUs) / 1e6);
}

/** Memory that sequences are going to need. */
export interface Demand {
  /** Growth of the running sequences. */
  readonly blocksPerSecond: number;
  /** Blocks for waiting prompts, less the blocks that are leaving, whose memory becomes free. */
  readonly aheadBlocks: number;
}

function demandAhead({ blocksPerSecond, aheadBlocks }: Demand, policy: LendingPolicy): number {
  return growthAhead(blocksPerSecond, policy) + aheadBlocks;
}

/**
 * Blocks to borrow now: those that will be missing below the low-water mark once running sequences have grown for
 * `lookAheadUs` and waiting prompts are admitted.
 * @param idle borrowed blocks that are idle
 */
export function blocksWanted(available: number, demand: Demand, idle: number, policy: LendingPolicy): number {
  const missing = policy.lowWaterBlocks + demandAhead(demand, policy) - available - idle;
  return missing > 0 ? upToUnits(Math.max(missing, policy.loanBlocksMin), policy) : 0;
}

/**
 * Idle borrowed blocks to return: those beyond the high-water mark plus the predicted growth, so that they are not
 * borrowed again at once.
 */
export function blocksToReturn(available: number, demand: Demand, idle: number, policy: LendingPolicy): number {
  const surplus = available + idle - policy.highWaterBlocks - demandAhead(demand, policy);
  return wholeUnits(Math.max(0, Math.min(idle, surplus)), policy);
}

/** Least share of a debtor: with less, its queries would exceed their time-out while steps run. */
export const remoteAttentionPermilleMin = 20;

/**
 * Share of a creditor's steps, in thousandths, for remote attention: what the strictest TBT objective of its own requests
 * leaves (Infinite-LLM, section 4.6). A step that gives the share p to debtors takes 1 / (1 - p) of its own time.
 * @param stepUs predicted time of its own steps @param tbtUsMax infinite without an objective
 */
export function slackPermille(stepUs: number, tbtUsMax: number, policy: LendingPolicy): number {
  const slack = 1000 - Math.ceil((1000 * stepUs) / tbtUsMax);
  return Math.min(policy.remoteAttentionPermilleMax, Math.max(remoteAttentionPermilleMin, slack));
}

/** A debtor's part of the share for remote attention, by its part of the lent blocks. Both in thousandths of a step. */
export function remoteAttentionPermille(blocks: number, lent: number, sharePermille: number): number {
  return lent === 0 ? 0 : Math.floor((sharePermille * blocks) / lent);
}

/** What a debtor's queries would take of a step without a bound, in thousandths: their time over the time without rests. */
export function unboundedPermille(attentionUs: number, restUs: number, elapsedUs: number): number {
  return Math.min(1000, Math.round((1000 * attentionUs) / Math.max(1, elapsedUs - restUs)));
}

/** Blocks of a loan that a debtor keeps after remote attention exceeded the bound. Load is proportional to blocks. */
export function blocksWithinBound(blocks: number, boundPermille: number, takenPermille: number): number {
  return takenPermille <= boundPermille ? blocks : Math.floor((blocks * boundPermille) / takenPermille);
}
