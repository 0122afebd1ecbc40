// Spill: which blocks leave when home memory runs short. Whole ranges of the sequence with the most blocks, after its
// first blocks if those can stay.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RemoteBlockMover } from './remote-block-mover.ts';

interface Home {
  readonly batcher: Pick<Batcher, 'running' | 'pagesOutstanding' | 'makePrivate'> & {
    readonly capacity: Pick<Batcher['capacity'], 'isOverCapacity'>;
  };
  readonly cache: BlockCache;
  readonly mover: RemoteBlockMover;
  readonly rangeBlocks: number;
  readonly lowWaterBlocks: number;
  /** Idle borrowed blocks. */
  readonly idleBlocks: number;
}

/** Starts to move blocks of one sequence out if home memory is short and borrowed blocks are idle. True if it did. */
export function spill(home: Home): boolean {
  const { batcher, cache, mover, rangeBlocks, lowWaterBlocks, idleBlocks } = home;
  if (idleBlocks === 0) return false;
  const { availablePages, blockPages } = cache;
  const ahead = Math.ceil(batcher.pagesOutstanding / blockPages);
  const spare = Math.floor(availablePages / blockPages) + mover.leavingBlocks - lowWaterBlocks;
  if (ahead <= spare) return false;
  const count = Math.min(upToRanges(ahead - spare, rangeBlocks), wholeRanges(idleBlocks, rangeBlocks));
  if (spillEnd(home, count, (sequence) => stayOf(home, sequence))) return true;
  // Running sequences need a range to grow into; otherwise nothing stays.
  const soon = spare - mover.leavingBlocks + mover.registry.leavingBlocks;
  return soon < rangeBlocks && (spillEnd(home, count, () => 0) || spillBeginning(home, count));
}

/**
 * Moves exclusive blocks of a sequence out, from a whole range on. The last range stays, because it grows.
 * @param stay number of first blocks that stay
 */
function spillEnd(home: Home, most: number, stay: (sequence: Sequence) => number): boolean {
  const { batcher, rangeBlocks, mover } = home;
  const sequences = [...batcher.running]
    // Blocks that were shared may be exclusive now; `makePrivate` checks that next.
    .map((sequence) => ({
      sequence,
      blocks: movable(home, sequence, mover.remoteEndOf(sequence) ?? 0, stay(sequence)),
    }))
    .filter(({ blocks }) => blocks >= rangeBlocks)
    .sort((a, b) => b.blocks - a.blocks || a.sequence.arrival - b.sequence.arrival);
  for (const { sequence } of sequences) {
    batcher.makePrivate(sequence, stay(sequence));
    const count = Math.min(most, wholeRanges(movable(home, sequence, mover.endOf(sequence), 0), rangeBlocks));
    if (count > 0 && mover.moveOut(sequence, mover.endOf(sequence), count)) return true;
  }
  return false;
}

/** Number of blocks from `end` on that can leave. */
function movable({ batcher, cache, mover, rangeBlocks }: Home, sequence: Sequence, end: number, stay: number): number {
  const { movesOut = [], broken = false } = mover.registry.maps.get(sequence) ?? {};
  // Blocks that are being received or sent stay in place, and so do those of sequences with a KV budget.
  const staysHere = sequence.hasBudget || sequence.arriving !== undefined || sequence.copier?.isWaiting === true;
  if (staysHere || broken || (movesOut[0]?.first ?? sequence.remoteFrom) < sequence.remoteFrom) return 0;
  const computed = Math.floor(sequence.computed / cache.blockTokens);
  // The blocks of a sequence over capacity may leave before they are computed.
  const goesAhead = batcher.capacity.isOverCapacity(sequence) && computed >= stay;
  // The next step computes the last token: until it ends, runs of equal steps find nothing new.
  const known = goesAhead ? Math.floor((sequence.length - 1) / cache.blockTokens) : computed;
  return known - rangeBlocks - Math.max(stay, end);
}

/** Moves out the last ranges before the remote blocks of a sequence. */
function spillBeginning({ batcher, mover, rangeBlocks }: Home, most: number): boolean {
  for (const sequence of [...batcher.running].sort((a, b) => b.remoteFrom - a.remoteFrom)) {
    const remote = mover.registry.maps.get(sequence);
    if (sequence.remoteBlocks === 0 || remote === undefined || remote.movesOut.length > 0 || remote.broken) continue;
    batcher.makePrivate(sequence, Math.max(0, sequence.remoteFrom - most));
    const own = upToRanges(sequence.sharedBlocks ?? 0, rangeBlocks);
    const count = Math.min(most, sequence.remoteFrom - own);
    if (count > 0 && mover.moveOut(sequence, sequence.remoteFrom - count, count)) return true;
  }
  return false;
}

/** Number of first blocks that stay, cached for later prompts: half, or fewer if little memory would be left to compute in. */
function stayOf({ batcher, cache, rangeBlocks, lowWaterBlocks }: Home, sequence: Sequence): number {
  if (sequence.remoteBlocks > 0) return sequence.remoteFrom;
  const own = sequence.table.groups[0].blocks.length;
  if (!batcher.capacity.isOverCapacity(sequence)) return wholeRanges(own / 2, rangeBlocks);
  const capacity = own + Math.floor(cache.availablePages / cache.blockPages);
  return wholeRanges(Math.min(capacity / 2, capacity - lowWaterBlocks - rangesInUse * rangeBlocks), rangeBlocks);
}

/** One range that grows, one that is computed and one that leaves. */
const rangesInUse = 3;

function upToRanges(blocks: number, rangeBlocks: number): number {
  return Math.ceil(blocks / rangeBlocks) * rangeBlocks;
}

function wholeRanges(blocks: number, rangeBlocks: number): number {
  return Math.max(0, Math.floor(blocks / rangeBlocks)) * rangeBlocks;
}
