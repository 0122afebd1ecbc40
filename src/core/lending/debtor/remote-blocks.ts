// The blocks of sequences that are outside their block tables: at creditors, or back home in single blocks.

import type { InstanceIndex, RBlockId } from '../../protocol/ids.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RBlockTable } from '../rblock-table.ts';
import type { Move, MoveOut } from './block-moves.ts';

/** Blocks at one instance, and the part in its host memory. */
export interface RemoteCounts {
  readonly blocks: number;
  readonly hostBlocks: number;
}

/** The remote blocks of one sequence; they are contiguous. */
export class RemoteBlockMap {
  /** Each with its position, from 0. A whole range lies at one creditor. */
  readonly rblocks = new Map<RBlockId, number>();
  /** Table blocks that leave, or will once they are computed, in order. */
  movesOut: readonly MoveOut[] = [];
  readonly relocations = new Set<Extract<Move, { kind: 'relocate' }>>();
  /** Some blocks were lost, or must leave and find no place: the sequence is recomputed. */
  broken = false;
  /** How often a creditor did not answer since the last change. */
  unanswered = 0;
  #outside: ReadonlyMap<InstanceIndex, RemoteCounts> | undefined;

  /** Blocks by creditor, and in host memory of the `own` instance. Valid until `changed`. */
  remoteCounts(own: InstanceIndex, table: RBlockTable): ReadonlyMap<InstanceIndex, RemoteCounts> {
    if (this.#outside !== undefined) return this.#outside;
    const outside = new Map<InstanceIndex, { blocks: number; hostBlocks: number }>();
    for (const rblock of this.rblocks.keys()) {
      const place = table.find(rblock);
      if (place === undefined || place.kind === 'staged' || (place.kind === 'home' && place.memory === 'device'))
        continue;
      const at = place.kind === 'remote' ? place.instance : own;
      const counts = outside.get(at) ?? { blocks: 0, hostBlocks: 0 };
      outside.set(at, counts);
      counts.blocks++;
      if (place.memory === 'host') counts.hostBlocks++;
    }
    this.#outside = outside;
    return outside;
  }

  /** In order; lost blocks are missing. */
  get inOrder(): readonly RBlockId[] {
    return [...this.rblocks].sort(([, a], [, b]) => a - b).map(([rblock]) => rblock);
  }

  /** `count` blocks will precede the present ones. */
  shift(count: number): void {
    for (const [rblock, index] of this.rblocks) this.rblocks.set(rblock, index + count);
  }

  /** Blocks arrived, left or moved. */
  changed(): void {
    this.#outside = undefined;
    this.unanswered = 0;
  }
}

/** `cache`: kept for prompts with the same prefix as an ended sequence. */
export type Holder = Sequence | 'cache';

/** Maps sequences to their remote blocks, and rBlocks to their holders. */
export class RemoteBlockRegistry {
  readonly all = new Map<Sequence, RemoteBlockMap>();
  /** Holders of rBlocks in use, including rBlocks that are still being filled. */
  readonly holders = new Map<RBlockId, Holder>();

  /** Computed blocks on their way out: their memory becomes free soon. */
  get leavingBlocks(): number {
    let blocks = 0;
    for (const { movesOut: outs } of this.all.values())
      for (const { complete, rblocks } of outs) if (complete) blocks += rblocks.length;
    return blocks;
  }

  open(sequence: Sequence): RemoteBlockMap {
    const away = this.all.get(sequence) ?? new RemoteBlockMap();
    this.all.set(sequence, away);
    return away;
  }

  /** The map of the sequence that holds the rBlock. */
  of(rblock: RBlockId): RemoteBlockMap | undefined {
    const holder = this.holders.get(rblock);
    return holder === undefined || holder === 'cache' ? undefined : this.all.get(holder);
  }

  /** True while the rBlock is being filled. */
  isComing(rblock: RBlockId): boolean {
    return this.of(rblock)?.rblocks.has(rblock) === false;
  }

  /**
   * Throws unless every rBlock has one holder, and every sequence has all of its blocks somewhere.
   * @param cached blocks that are kept as cache
   */
  check(table: RBlockTable, cached: number): void {
    let held = cached;
    for (const [sequence, { rblocks, movesOut: outs, relocations: over, broken }] of this.all) {
      checkOuts(sequence, outs);
      held += rblocks.size;
      for (const out of outs) held += out.rblocks.length;
      for (const { places } of over) held += places.size;
      if (!broken && sequence.remoteBlocks !== rblocks.size)
        throw new Error(
          `Borrower broken: arrival ${sequence.arrival} has ${rblocks.size} blocks away, counts ${sequence.remoteBlocks}`,
        );
    }
    if (held !== this.holders.size || held !== table.size)
      throw new Error(
        `Borrower broken: ${held} rBlocks held, ${this.holders.size} have a holder, ${table.size} are known`,
      );
  }
}

/** Throws unless each leaving range is adjacent to the remote blocks at the time it leaves. */
function checkOuts({ arrival, remoteFrom, remoteBlocks }: Sequence, outs: readonly MoveOut[]): void {
  let [from, to] = remoteBlocks > 0 ? [remoteFrom, remoteFrom + remoteBlocks] : [outs[0]?.first, outs[0]?.first];
  for (const { first, rblocks } of outs) {
    const end = first + rblocks.length;
    if (first === to) to = end;
    else if (end === from) from = first;
    else
      throw new Error(`Borrower broken: arrival ${arrival} has a gap before or behind its blocks ${first} to ${end}`);
  }
}
