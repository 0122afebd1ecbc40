// When an instance borrows, gives back, lends and recalls: figures of its own memory only.

import type { MemoryFigures } from '../kvcache/lending-memory.ts';

export interface LendingPolicy {
  /** Share of a memory that is lent at most. */
  readonly lentShareMax: number;
  /** Blocks below which an instance begins to borrow, and which it never lends. */
  readonly lowWaterBlocks: number;
  /** Above so many blocks, available and in hand, borrowed ones that nobody uses go back: at least `loanBlocksMin` above the low-water mark. */
  readonly highWaterBlocks: number;
  /** Below so many available blocks, what is lent is recalled. */
  readonly recallBlocks: number;
  /** How far growth is looked ahead: about the time that borrowing takes. */
  readonly lookAheadUs: number;
  /** Blocks of one loan at least. */
  readonly loanBlocksMin: number;
  /** Share of a step, in thousandths, that a creditor spends on all its guests. */
  readonly remoteAttentionPermilleMax: number;
  /** Blocks are lent, moved and given back in multiples of this, so that a range of attention lies at one creditor; 1 unless given. */
  readonly unitBlocks?: number;
}

/** The whole units in so many blocks. */
export function wholeUnits(blocks: number, { unitBlocks = 1 }: Pick<LendingPolicy, 'unitBlocks'>): number {
  return blocks - (blocks % unitBlocks);
}

/** So many blocks and what is missing to whole units. */
export function upToUnits(blocks: number, { unitBlocks = 1 }: Pick<LendingPolicy, 'unitBlocks'>): number {
  return Math.ceil(blocks / unitBlocks) * unitBlocks;
}

/** Blocks that can be lent now. */
export function blocksLendable({ total, available, lent }: MemoryFigures, policy: LendingPolicy): number {
  const byShare = Math.floor(total * policy.lentShareMax) - lent;
  return wholeUnits(Math.max(0, Math.min(byShare, available - policy.lowWaterBlocks)), policy);
}

/** What running sequences grow by in the time that borrowing takes. */
function growthAhead(growthBlocksPerSecond: number, policy: LendingPolicy): number {
  return Math.ceil((growthBlocksPerSecond * policy.lookAheadUs) / 1e6);
}

/** What sequences are going to need. */
export interface Demand {
  /** As the running ones grow. */
  readonly blocksPerSecond: number;
  /** For prompts, known in advance, less what is on its way out and leaves room behind. */
  readonly aheadBlocks: number;
}

function demandAhead({ blocksPerSecond, aheadBlocks }: Demand, policy: LendingPolicy): number {
  return growthAhead(blocksPerSecond, policy) + aheadBlocks;
}

/**
 * Blocks to borrow now: what is missing at the low-water mark once running sequences have grown for the time that borrowing takes and prompts
 * are in.
 * @param inHand borrowed blocks that nobody uses yet
 */
export function blocksWanted(available: number, demand: Demand, inHand: number, policy: LendingPolicy): number {
  const missing = policy.lowWaterBlocks + demandAhead(demand, policy) - available - inHand;
  return missing > 0 ? upToUnits(Math.max(missing, policy.loanBlocksMin), policy) : 0;
}

/** Blocks in hand to give back: what is beyond the high-water mark and the same growth, so that it is not borrowed again at once. */
export function blocksToGiveBack(available: number, demand: Demand, inHand: number, policy: LendingPolicy): number {
  const surplus = available + inHand - policy.highWaterBlocks - demandAhead(demand, policy);
  return wholeUnits(Math.max(0, Math.min(inHand, surplus)), policy);
}

/** Of what guests may take of a step, the part of one that holds `blocks` of `lent`: thousandths of the step. */
export function remoteAttentionPermille(blocks: number, lent: number, policy: LendingPolicy): number {
  return lent === 0 ? 0 : Math.floor((policy.remoteAttentionPermilleMax * blocks) / lent);
}

/** Blocks that a debtor keeps at a creditor whose bound its guests' work exceeds: work goes with blocks. */
export function blocksWithinBound(blocks: number, boundPermille: number, takenPermille: number): number {
  return takenPermille <= boundPermille ? blocks : Math.floor((blocks * boundPermille) / takenPermille);
}
