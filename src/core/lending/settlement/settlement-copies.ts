// What a settlement brings home, copied to the staging buffer before places are given back: one settlement at a time.
import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { RBlockId, SettlementId } from '../../protocol/ids.ts';
import type { BlockLocation, BlockMoves, Move } from '../debtor/block-moves.ts';
import type { BlockLocator } from '../debtor/block-sites.ts';
import type { RemoteBlockRegistry } from '../debtor/remote-blocks.ts';
import type { RemotePrefixCache } from '../debtor/remote-prefix-cache.ts';
import type { StagedBlocks } from '../debtor/staged-blocks.ts';

interface Parts {
  readonly book: RemoteBlockRegistry;
  readonly moves: BlockMoves;
  readonly locator: BlockLocator;
  readonly staged: StagedBlocks;
  readonly outside: ExtraPageRows;
  readonly cache: RemotePrefixCache;
  /** All contents of a settlement are staged, or never will be. */
  readonly fetched: (settlement: SettlementId, all: boolean) => void;
}

type Fetch = Extract<Move, { kind: 'fetch' }>;

export class SettlementCopies {
  readonly #parts: Parts;
  #fetching: Fetch | undefined;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Not where earlier contents are still in the buffer, which have a place and wait for the step in flight to end. */
  fetch(settlement: SettlementId, rblocks: readonly RBlockId[]): void {
    const { staged, outside, cache, book, locator, moves, fetched } = this.#parts;
    const hasRoom = staged.hasRoom(rblocks.length) && rblocks.length <= outside.free;
    // What is on its way to where they lie is not to be had from there yet.
    if (!hasRoom || rblocks.some((rblock) => book.isComing(rblock))) {
      fetched(settlement, false);
      return;
    }
    // What nobody runs with is not worth a copy.
    for (const rblock of rblocks) cache.cutAt(rblock);
    const pairs: [BlockLocation, BlockLocation][] = [];
    for (const rblock of rblocks.filter((each) => book.holders.has(each)))
      pairs.push([locator.of(rblock), locator.stage(rblock)]);
    if (pairs.length === 0) {
      fetched(settlement, true);
      return;
    }
    this.#fetching = { kind: 'fetch', settlement, pending: 0 };
    moves.start(this.#fetching, pairs);
  }

  arrived({ settlement }: Fetch): void {
    this.#parts.fetched(settlement, true);
  }

  broken(move: Fetch): void {
    this.#parts.moves.end(move);
    this.#parts.fetched(move.settlement, false);
  }

  /** The settlement came to nothing. */
  cancelFetch({ epoch, number }: SettlementId, rblocks: readonly RBlockId[]): void {
    const move = this.#fetching;
    if (move?.settlement.epoch !== epoch || move.settlement.number !== number) return;
    this.#fetching = undefined;
    this.#parts.moves.end(move);
    for (const rblock of rblocks) this.#parts.staged.drop(rblock);
  }
}
