// Which blocks leave home when it runs short: whole ranges of the sequence that has most of them.
import type { Batcher } from '../../policy/batching/batcher.ts';
import type { Sequence } from '../../policy/batching/sequence.ts';
import type { BlockCache } from '../../policy/blocks/block-cache.ts';
import type { AwayMoves } from './away-moves.ts';

interface Home {
  readonly batcher: Batcher;
  readonly cache: BlockCache;
  readonly moves: AwayMoves;
  readonly rangeBlocks: number;
  readonly lowWaterBlocks: number;
  /** Borrowed blocks that nobody uses. */
  readonly inHand: number;
}

/** Starts to move out what one sequence can spare, if home runs short and there is a place: true when it did. */
export function spill(home: Home): boolean {
  const { batcher, cache, moves, rangeBlocks, lowWaterBlocks, inHand } = home;
  if (inHand === 0) return false;
  const { availablePages, blockPages } = cache;
  const ahead = Math.ceil(batcher.pagesAhead / blockPages);
  const short = lowWaterBlocks + ahead - Math.floor(availablePages / blockPages) - moves.outBlocks;
  if (short <= 0) return false;
  for (const sequence of batcher.running) if (!moves.book.all.has(sequence)) batcher.disownMore(sequence);
  const sequences = [...batcher.running]
    .map((sequence) => ({ sequence, blocks: movable(home, sequence) }))
    .filter(({ blocks }) => blocks >= rangeBlocks)
    .sort((a, b) => b.blocks - a.blocks || a.sequence.arrival - b.sequence.arrival);
  for (const { sequence } of sequences) {
    batcher.disown(sequence);
    const most = Math.min(movable(home, sequence), inHand);
    const count = Math.min(Math.ceil(short / rangeBlocks), Math.floor(most / rangeBlocks)) * rangeBlocks;
    if (count > 0 && moves.moveOut(sequence, count)) return true;
  }
  return false;
}

/** Blocks that could go: computed, its own, beginning at a whole range; the last range stays, since it grows. */
function movable({ cache, moves, rangeBlocks }: Home, sequence: Sequence): number {
  const away = moves.book.all.get(sequence);
  // What comes to its blocks is written to where they are now.
  if (sequence.arriving !== undefined || away?.out !== undefined || away?.broken === true) return 0;
  const computed = Math.floor(sequence.computed / cache.blockTokens);
  return computed - rangeBlocks - moves.firstToMove(sequence) - sequence.awayBlocks;
}
