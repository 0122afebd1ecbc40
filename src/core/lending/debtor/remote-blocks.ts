// The blocks of sequences outside their block tables, at creditors or at home, and the attention work of a step over them.

import type { InstanceIndex, RBlockId } from '../../protocol/ids.ts';
import type { RemoteWork } from '../../protocol/lending-effects.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RBlockTable } from '../rblock-table.ts';
import type { Move, MoveOut } from './block-moves.ts';
import type { Debt } from './debt.ts';

/** Blocks at one instance; `hostBlocks`: the part in its host memory. */
export interface RemoteCounts {
  readonly blocks: number;
  readonly hostBlocks: number;
}

/** The remote blocks of one sequence; they are contiguous. */
export class RemoteBlockMap {
  /** Each with its position, from 0. A whole range lies at one creditor. */
  readonly rblocks = new Map<RBlockId, number>();
  /** Moves of blocks from the table, in order. Some wait until their blocks are computed. */
  movesOut: readonly MoveOut[] = [];
  readonly relocations = new Set<Extract<Move, { kind: 'relocate' }>>();
  /** Some blocks were lost, or were recalled without a place to move to: the sequence is recomputed. */
  broken = false;
  /** Unanswered queries since the last change. */
  unanswered = 0;
  #counts: ReadonlyMap<InstanceIndex, RemoteCounts> | undefined;

  /** Blocks by creditor; for the `own` instance, those in its host memory. Valid until `changed`. */
  remoteCounts(own: InstanceIndex, table: RBlockTable): ReadonlyMap<InstanceIndex, RemoteCounts> {
    if (this.#counts !== undefined) return this.#counts;
    const byInstance = new Map<InstanceIndex, { blocks: number; hostBlocks: number }>();
    for (const rblock of this.rblocks.keys()) {
      const place = table.find(rblock);
      if (place === undefined || place.kind === 'staged' || (place.kind === 'home' && place.memory === 'device'))
        continue;
      const at = place.kind === 'remote' ? place.instance : own;
      const counts = byInstance.get(at) ?? { blocks: 0, hostBlocks: 0 };
      byInstance.set(at, counts);
      counts.blocks++;
      if (place.memory === 'host') counts.hostBlocks++;
    }
    this.#counts = byInstance;
    return byInstance;
  }

  /** In order; lost blocks are missing. */
  get inOrder(): readonly RBlockId[] {
    return [...this.rblocks].sort(([, a], [, b]) => a - b).map(([rblock]) => rblock);
  }

  /** Makes place for `count` blocks before the present ones. */
  shift(count: number): void {
    for (const [rblock, index] of this.rblocks) this.rblocks.set(rblock, index + count);
  }

  /** Blocks arrived, left or moved. */
  changed(): void {
    this.#counts = undefined;
    this.unanswered = 0;
  }
}

type Writable<T> = { -readonly [K in keyof T]: T[K] };

interface Lending {
  readonly instance: InstanceIndex;
  readonly table: RBlockTable;
  readonly debts: Iterable<Debt>;
  readonly blockTokens: number;
}

const noWork = {
  rows: 0,
  keyRows: 0,
  decodeRows: 0,
  decodeKeys: 0,
  hostTokens: 0,
  remoteAttentionPermille: 0,
};

/** `cache`: the remote prefix cache. */
export type Holder = Sequence | 'cache';

/** Maps sequences to their remote blocks, and rBlocks to their holders. */
export class RemoteBlockRegistry {
  readonly maps = new Map<Sequence, RemoteBlockMap>();
  /** Holders of rBlocks in use, including rBlocks that are still being filled. */
  readonly holders = new Map<RBlockId, Holder>();

  /** Computed blocks that are leaving: their memory becomes free soon. */
  get leavingBlocks(): number {
    let blocks = 0;
    for (const { movesOut } of this.maps.values())
      for (const { complete, rblocks } of movesOut) if (complete) blocks += rblocks.length;
    return blocks;
  }

  openMap(sequence: Sequence): RemoteBlockMap {
    const remote = this.maps.get(sequence) ?? new RemoteBlockMap();
    this.maps.set(sequence, remote);
    return remote;
  }

  /** The map of the sequence that holds the rBlock. */
  mapOf(rblock: RBlockId): RemoteBlockMap | undefined {
    const holder = this.holders.get(rblock);
    return holder === undefined || holder === 'cache' ? undefined : this.maps.get(holder);
  }

  /** True while the rBlock is being filled. */
  isFilling(rblock: RBlockId): boolean {
    return this.mapOf(rblock)?.rblocks.has(rblock) === false;
  }

  /**
   * Attention work of a step by creditor; the instance itself stands for its own host memory. Undefined if no planned
   * row attends to remote keys.
   */
  remoteWork(
    planned: readonly { readonly sequence: Sequence }[],
    { instance, table, debts, blockTokens }: Lending,
  ): readonly RemoteWork[] | undefined {
    const works = new Map<InstanceIndex, Writable<RemoteWork>>();
    for (const { sequence } of planned) {
      for (const [creditor, { blocks, hostBlocks }] of this.maps.get(sequence)?.remoteCounts(instance, table) ?? []) {
        const work = works.get(creditor) ?? { creditor, ...noWork };
        works.set(creditor, work);
        work.hostTokens += hostBlocks * blockTokens;
        if (creditor === instance) continue;
        const rows = sequence.planned;
        work.rows += rows;
        work.keyRows += rows * blocks * blockTokens;
        if (rows > 1) continue;
        work.decodeRows++;
        work.decodeKeys += blocks * blockTokens;
      }
    }
    if (works.size === 0) return undefined;
    for (const { creditor, remoteAttentionPermille } of debts) {
      const work = works.get(creditor);
      if (work !== undefined) work.remoteAttentionPermille += remoteAttentionPermille;
    }
    return [...works.values()].sort((a, b) => a.creditor - b.creditor);
  }

  /**
   * Throws unless every rBlock has one holder, and all blocks of every sequence have a location.
   * @param cached number of blocks in the remote prefix cache
   */
  check(table: RBlockTable, cached: number): void {
    let held = cached;
    for (const [sequence, { rblocks, movesOut, relocations, broken }] of this.maps) {
      checkMovesOut(sequence, movesOut);
      held += rblocks.size;
      for (const out of movesOut) held += out.rblocks.length;
      for (const { places } of relocations) held += places.size;
      if (!broken && sequence.remoteBlocks !== rblocks.size)
        throw new Error(
          `Borrower broken: arrival ${sequence.arrival} has ${rblocks.size} remote blocks, and counts ${sequence.remoteBlocks}`,
        );
    }
    if (held !== this.holders.size || held !== table.size)
      throw new Error(
        `Borrower broken: ${held} rBlocks in maps and cache, ${this.holders.size} with a holder, ${table.size} in the table`,
      );
  }
}

/** Throws unless each range is adjacent to the remote blocks when it leaves. */
function checkMovesOut({ arrival, remoteFrom, remoteBlocks }: Sequence, movesOut: readonly MoveOut[]): void {
  let [from, to] =
    remoteBlocks > 0 ? [remoteFrom, remoteFrom + remoteBlocks] : [movesOut[0]?.first, movesOut[0]?.first];
  for (const { first, rblocks } of movesOut) {
    const end = first + rblocks.length;
    if (first === to) to = end;
    else if (end === from) from = first;
    else throw new Error(`Borrower broken: arrival ${arrival} has a gap before or after its blocks ${first} to ${end}`);
  }
}
