// Copies of blocks under way over the network, between an instance and its creditors or between two of these.
import type { Sequence } from '../../policy/batching/sequence.ts';
import type { BlockId } from '../../policy/blocks/block-pool.ts';
import type { PageRow } from '../../policy/blocks/outside-rows.ts';
import type { RBlockId } from '../../policy/lending/rblock-table.ts';
import type { InstanceId, Memory } from '../../policy/lending/terms.ts';
import type { SettlementId } from './messages.ts';

/** Numbered by the instance whose blocks they are: one for each pair of instances between which blocks of a move go. */
export type MoveNumber = number;

/** What a lent block is called by whoever borrows it: blocks of a creditor's two memories may have one number. */
export function lentName(memory: Memory, block: BlockId): BlockId {
  return 2 * block + Number(memory === 'host');
}

export interface BlocksToMove {
  readonly move: MoveNumber;
  readonly from: InstanceId;
  readonly to: InstanceId;
  /** (blocks): at a creditor the name of the block that it lent, at the instance whose they are a row of its page table; and where each goes, likewise. */
  readonly sources: readonly (BlockId | PageRow)[];
  readonly targets: readonly (BlockId | PageRow)[];
  readonly purpose: 'borrow' | 'settle';
}

export type Move =
  /** Blocks of a sequence's table, from its `first` on, to these rBlocks. */
  | {
      readonly kind: 'out';
      readonly sequence: Sequence;
      readonly first: number;
      readonly rblocks: readonly RBlockId[];
      pending: number;
    }
  /** From one place to another: old rBlock, new one. */
  | { readonly kind: 'over'; readonly sequence: Sequence; readonly places: Map<RBlockId, RBlockId>; pending: number }
  /** Of a settlement, to the staging buffer. */
  | { readonly kind: 'fetch'; readonly settlement: SettlementId; pending: number };

/** Where a block lies or is to lie. */
export interface BlockSite {
  readonly instance: InstanceId;
  readonly at: BlockId | PageRow;
}

export interface MoveDriver {
  start(part: BlocksToMove): void;
  stop(move: MoveNumber): void;
  /** (pages) both, at home: before anything else is started. */
  copyHome(from: Int32Array, to: Int32Array): void;
}

interface Way {
  readonly from: InstanceId;
  readonly to: InstanceId;
  readonly sources: (BlockId | PageRow)[];
  readonly targets: (BlockId | PageRow)[];
}

/** A move is over when all its parts have arrived; what is stopped never is. */
export class BlockMoves {
  readonly #driver: MoveDriver;
  readonly #parts = new Map<MoveNumber, Move>();
  #next: MoveNumber = 1;
  /** Blocks on their way out of tables. */
  outBlocks = 0;

  constructor(driver: MoveDriver) {
    this.#driver = driver;
  }

  get size(): number {
    return this.#parts.size;
  }

  /** @param blocks where each comes from, and where it goes */
  start(move: Move, blocks: Iterable<readonly [BlockSite, BlockSite]>): void {
    const ways = new Map<string, Way>();
    for (const [from, to] of blocks) {
      const key = `${from.instance} ${to.instance}`;
      const way = ways.get(key) ?? { from: from.instance, to: to.instance, sources: [], targets: [] };
      ways.set(key, way);
      way.sources.push(from.at);
      way.targets.push(to.at);
    }
    move.pending = ways.size;
    if (move.kind === 'out') this.outBlocks += move.rblocks.length;
    const purpose = move.kind === 'fetch' ? 'settle' : 'borrow';
    for (const way of ways.values()) {
      this.#parts.set(this.#next, move);
      this.#driver.start({ move: this.#next++, ...way, purpose });
    }
  }

  /** A part has arrived: the move that is complete by that, if it is. */
  arrived(number: MoveNumber): Move | undefined {
    const move = this.#parts.get(number);
    if (move === undefined) return undefined;
    this.#parts.delete(number);
    return --move.pending === 0 ? move : undefined;
  }

  /** The move that a part belongs to. */
  of(number: MoveNumber): Move | undefined {
    return this.#parts.get(number);
  }

  /** It is complete and carried out, or nobody wants it any more. */
  end(move: Move): void {
    if (move.kind === 'out') this.outBlocks -= move.rblocks.length;
    if (move.pending === 0) return;
    for (const [number, other] of this.#parts) {
      if (other !== move) continue;
      this.#parts.delete(number);
      this.#driver.stop(number);
    }
  }
}
