// Copies of blocks under way over the network, between an instance and its creditors or between two of these.
import type { Sequence } from '../../policy/batching/sequence.ts';
import type { RBlockId } from '../../policy/lending/rblock-table.ts';
import type { InstanceId } from '../../policy/lending/terms.ts';
import type { SettlementId } from './messages.ts';

/** Numbered by the instance whose blocks they are: one for each pair of instances between which blocks of a move go. */
export type MoveNumber = number;

export interface BlocksToMove {
  readonly move: MoveNumber;
  readonly from: InstanceId;
  readonly to: InstanceId;
  readonly blocks: number;
  readonly purpose: 'borrow' | 'settle';
}

export type Move =
  /** Blocks of a sequence's table, from its first own one on, to these rBlocks. */
  | { readonly kind: 'out'; readonly sequence: Sequence; readonly rblocks: readonly RBlockId[]; pending: number }
  /** From one place to another: old rBlock, new one. */
  | { readonly kind: 'over'; readonly sequence: Sequence; readonly places: Map<RBlockId, RBlockId>; pending: number }
  /** Of a settlement, to the staging buffer. */
  | { readonly kind: 'fetch'; readonly settlement: SettlementId; pending: number };

export interface MoveDriver {
  start(part: BlocksToMove): void;
  stop(move: MoveNumber): void;
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

  /** @param ways from, to, and how many blocks go there: one entry for each block will do */
  start(move: Move, ways: Iterable<readonly [InstanceId, InstanceId]>): void {
    const blocks = new Map<string, [InstanceId, InstanceId, number]>();
    for (const [from, to] of ways) {
      const way = blocks.get(`${from} ${to}`);
      if (way === undefined) blocks.set(`${from} ${to}`, [from, to, 1]);
      else way[2]++;
    }
    move.pending = blocks.size;
    if (move.kind === 'out') this.outBlocks += move.rblocks.length;
    const purpose = move.kind === 'fetch' ? 'settle' : 'borrow';
    for (const [from, to, count] of blocks.values()) {
      this.#parts.set(this.#next, move);
      this.#driver.start({ move: this.#next++, from, to, blocks: count, purpose });
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
