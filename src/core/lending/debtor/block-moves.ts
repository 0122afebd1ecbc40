// Block copies in flight between an instance and its creditors, or between two creditors.

import type {
  BlockId,
  InstanceIndex,
  MoveNumber,
  PageRow,
  RBlockId,
  SettlementId,
  StepNumber,
} from '../../protocol/ids.ts';
import type { BorrowerEffect } from '../../protocol/lending-effects.ts';
import type { Memory } from '../../protocol/lending-report.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';

/** The name of a lent block for its debtor: blocks of a creditor's two memories may share a number. */
export function lentName(memory: Memory, block: BlockId): BlockId {
  return 2 * block + Number(memory === 'host');
}

export type Move =
  | MoveOut
  /** From recalled blocks to others: new rBlock by old rBlock. */
  | {
      readonly kind: 'relocate';
      readonly sequence: Sequence;
      readonly places: Map<RBlockId, RBlockId>;
      pending: number;
    }
  /** To the staging buffer, for a settlement. */
  | { readonly kind: 'stage'; readonly settlement: SettlementId; pending: number };

/** One range of a sequence's table, from block `first` on, that moves to these rBlocks at one creditor. */
export interface MoveOut {
  readonly kind: 'moveOut';
  readonly sequence: Sequence;
  readonly first: number;
  readonly rblocks: readonly RBlockId[];
  readonly number: MoveNumber;
  pending: number;
  /** Blocks that are being copied or have been copied. */
  sent: number;
  /** All of its blocks are computed. */
  complete: boolean;
  arrived: boolean;
}

/** Where a block lies or will lie. */
export interface BlockLocation {
  readonly instance: InstanceIndex;
  readonly at: BlockId | PageRow;
}

export interface BorrowerEffectSink {
  emit(effect: BorrowerEffect): void;
}

interface PairTransfer {
  readonly from: InstanceIndex;
  readonly to: InstanceIndex;
  readonly sources: (BlockId | PageRow)[];
  readonly targets: (BlockId | PageRow)[];
}

/** A move is complete when all of its parts have arrived; a stopped move never completes. */
export class BlockMoves {
  readonly #sink: BorrowerEffectSink;
  readonly #parts = new Map<MoveNumber, Move>();
  #next: MoveNumber = 1;
  /** Blocks that are leaving block tables. */
  leavingBlocks = 0;

  constructor(sink: BorrowerEffectSink) {
    this.#sink = sink;
  }

  get size(): number {
    return this.#parts.size;
  }

  /** @param blocks source and destination of each block */
  start(move: Exclude<Move, MoveOut>, blocks: Iterable<readonly [BlockLocation, BlockLocation]>): void {
    const pairs = new Map<string, PairTransfer>();
    for (const [from, to] of blocks) {
      const key = `${from.instance} ${to.instance}`;
      const pair = pairs.get(key) ?? { from: from.instance, to: to.instance, sources: [], targets: [] };
      pairs.set(key, pair);
      pair.sources.push(from.at);
      pair.targets.push(to.at);
    }
    move.pending = pairs.size;
    const purpose = move.kind === 'stage' ? 'settle' : 'borrow';
    for (const pair of pairs.values()) {
      this.#parts.set(this.#next, move);
      this.#sink.emit({ kind: 'moveBlocks', move: this.#next++, ...pair, purpose });
    }
  }

  /** Starts a move before its blocks are computed, so that the creditor is ready to receive them. */
  open(
    blocks: Pick<MoveOut, 'sequence' | 'first' | 'rblocks'>,
    from: InstanceIndex,
    targets: readonly BlockLocation[],
  ): MoveOut {
    const move = this.#next++;
    const out: MoveOut = {
      kind: 'moveOut',
      ...blocks,
      number: move,
      pending: 1,
      sent: 0,
      complete: false,
      arrived: false,
    };
    this.#parts.set(move, out);
    this.leavingBlocks += out.rblocks.length;
    const [{ instance: to }] = targets;
    this.#sink.emit({
      ...{ kind: 'moveBlocks', move, from, to, sources: undefined, targets: targets.map(({ at }) => at) },
      purpose: 'borrow',
    });
    return out;
  }

  /**
   * Copies the blocks of a move that are computed, or that the next step computes.
   * @param row page-table row of a block of the sequence
   * @param step the next step
   * @param computed blocks of the sequence that are computed now
   * @param computedNext blocks that are computed after that step
   */
  fill(
    out: MoveOut,
    row: (block: number) => PageRow,
    step: StepNumber | undefined,
    computed: number,
    computedNext: number,
  ): void {
    if (out.complete) return;
    const { first, number: move, rblocks } = out;
    const within = (blocks: number): number => Math.min(rblocks.length, Math.max(0, blocks - first));
    const rows = (from: number, to: number): PageRow[] =>
      Array.from({ length: to - from }, (_, i) => row(first + from + i));
    const [have, next] = [within(computed), within(computedNext)];
    // If more was copied than is computed, the step was aborted: its blocks are copied again.
    const from = Math.min(out.sent, have);
    out.complete = have === rblocks.length;
    if (have > from || out.complete)
      this.#sink.emit({
        kind: 'fillBlocks',
        move,
        at: from,
        sources: rows(from, have),
        step: undefined,
        last: out.complete,
      });
    if (next > have)
      this.#sink.emit({ kind: 'fillBlocks', move, at: have, sources: rows(have, next), step, last: false });
    out.sent = next;
  }

  /** One part has arrived. Returns the move if it is complete. */
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

  /** The move is applied, or cancelled: its parts in flight are stopped. */
  end(move: Move): void {
    if (move.kind === 'moveOut') this.leavingBlocks -= move.rblocks.length;
    if (move.pending === 0) return;
    for (const [number, other] of this.#parts) {
      if (other !== move) continue;
      this.#parts.delete(number);
      this.#sink.emit({ kind: 'stopMove', move: number });
    }
  }
}
