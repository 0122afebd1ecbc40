// Copies the contents that a settlement brings home to the staging buffer, before the borrowed blocks are returned. One
// settlement at a time.
import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { RBlockId, SettlementId } from '../../protocol/ids.ts';
import type { RManagerEvent } from '../../protocol/lending-messages.ts';
import type { BlockLocator } from '../debtor/block-locator.ts';
import type { BlockLocation, BlockMoves, Move } from '../debtor/block-moves.ts';
import type { RemoteBlockRegistry } from '../debtor/remote-blocks.ts';
import type { RemotePrefixCache } from '../debtor/remote-prefix-cache.ts';
import type { StagedBlocks } from '../debtor/staged-blocks.ts';

export interface RManagerDriver {
  /** Applies an event to the rManager, and carries out its effects. */
  applyToRManager(event: RManagerEvent): void;
}

interface Parts {
  readonly context: RManagerDriver;
  readonly registry: RemoteBlockRegistry;
  readonly blockMoves: BlockMoves;
  readonly locator: BlockLocator;
  readonly stagedBlocks: StagedBlocks;
  readonly extraRows: ExtraPageRows;
  readonly prefixCache: RemotePrefixCache;
}

type StageMove = Extract<Move, { kind: 'stage' }>;

export class SettlementCopies {
  readonly #parts: Parts;
  #staging: StageMove | undefined;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Fails while earlier contents occupy the buffer until the step in flight ends. */
  stage(settlement: SettlementId, rblocks: readonly RBlockId[]): void {
    const { stagedBlocks, extraRows, prefixCache, registry, locator, blockMoves } = this.#parts;
    const hasRoom = stagedBlocks.hasRoom(rblocks.length) && rblocks.length <= extraRows.free;
    // A block that is still being copied to its creditor cannot be read there yet.
    if (!hasRoom || rblocks.some((rblock) => registry.isFilling(rblock))) {
      this.#report('stagingFailed', settlement);
      return;
    }
    // Cached blocks that no sequence uses are not worth a copy.
    for (const rblock of rblocks) prefixCache.truncateAt(rblock);
    const pairs: [BlockLocation, BlockLocation][] = [];
    for (const rblock of rblocks.filter((each) => registry.holders.has(each)))
      pairs.push([locator.of(rblock), locator.stage(rblock)]);
    if (pairs.length === 0) {
      this.#report('staged', settlement);
      return;
    }
    this.#staging = { kind: 'stage', settlement, pending: 0 };
    blockMoves.start(this.#staging, pairs);
  }

  arrived({ settlement }: StageMove): void {
    this.#report('staged', settlement);
  }

  failed(move: StageMove): void {
    this.#parts.blockMoves.end(move);
    this.#report('stagingFailed', move.settlement);
  }

  #report(kind: 'staged' | 'stagingFailed', settlement: SettlementId): void {
    this.#parts.context.applyToRManager({ kind, settlement });
  }

  /** The settlement was aborted. */
  cancelStaging({ epoch, number }: SettlementId, rblocks: readonly RBlockId[]): void {
    const move = this.#staging;
    if (move?.settlement.epoch !== epoch || move.settlement.number !== number) return;
    this.#staging = undefined;
    this.#parts.blockMoves.end(move);
    for (const rblock of rblocks) this.#parts.stagedBlocks.discard(rblock);
  }
}
