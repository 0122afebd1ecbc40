// Copies the contents that a settlement brings home to the staging buffer, before borrowed blocks are returned; one
// settlement at a time.
import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { RBlockId, SettlementId } from '../../protocol/ids.ts';
import type { BlockLocator } from '../debtor/block-locator.ts';
import type { BlockLocation, BlockMoves, Move } from '../debtor/block-moves.ts';
import type { RemoteBlockRegistry } from '../debtor/remote-blocks.ts';
import type { RemotePrefixCache } from '../debtor/remote-prefix-cache.ts';
import type { StagedBlocks } from '../debtor/staged-blocks.ts';

interface Parts {
  readonly registry: RemoteBlockRegistry;
  readonly blockMoves: BlockMoves;
  readonly locator: BlockLocator;
  readonly stagedBlocks: StagedBlocks;
  readonly extraRows: ExtraPageRows;
  readonly cache: RemotePrefixCache;
  /** All contents of a settlement are staged, or staging failed. */
  readonly fetched: (settlement: SettlementId, all: boolean) => void;
}

type StageMove = Extract<Move, { kind: 'stage' }>;

export class SettlementCopies {
  readonly #parts: Parts;
  #staging: StageMove | undefined;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Fails while earlier contents still occupy the buffer and wait for the step in flight to end. */
  fetch(settlement: SettlementId, rblocks: readonly RBlockId[]): void {
    const { stagedBlocks, extraRows, cache, registry, locator, blockMoves, fetched } = this.#parts;
    const hasRoom = stagedBlocks.hasRoom(rblocks.length) && rblocks.length <= extraRows.free;
    // A block that is still being copied to its creditor cannot be read there yet.
    if (!hasRoom || rblocks.some((rblock) => registry.isComing(rblock))) {
      fetched(settlement, false);
      return;
    }
    // Blocks that only the cache holds are not worth a copy.
    for (const rblock of rblocks) cache.cutAt(rblock);
    const pairs: [BlockLocation, BlockLocation][] = [];
    for (const rblock of rblocks.filter((each) => registry.holders.has(each)))
      pairs.push([locator.of(rblock), locator.stage(rblock)]);
    if (pairs.length === 0) {
      fetched(settlement, true);
      return;
    }
    this.#staging = { kind: 'stage', settlement, pending: 0 };
    blockMoves.start(this.#staging, pairs);
  }

  arrived({ settlement }: StageMove): void {
    this.#parts.fetched(settlement, true);
  }

  broken(move: StageMove): void {
    this.#parts.blockMoves.end(move);
    this.#parts.fetched(move.settlement, false);
  }

  /** The settlement was aborted. */
  cancelFetch({ epoch, number }: SettlementId, rblocks: readonly RBlockId[]): void {
    const move = this.#staging;
    if (move?.settlement.epoch !== epoch || move.settlement.number !== number) return;
    this.#staging = undefined;
    this.#parts.blockMoves.end(move);
    for (const rblock of rblocks) this.#parts.stagedBlocks.drop(rblock);
  }
}
