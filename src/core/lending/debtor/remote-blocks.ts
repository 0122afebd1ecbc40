// The blocks of sequences that do not lie in their tables: with creditors, or back home in places of their own.

import type { InstanceIndex, RBlockId } from '../../protocol/ids.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RBlockTable } from '../rblock-table.ts';
import type { Move, MoveOut } from './block-moves.ts';

/** Blocks at an instance, and which of them in its host memory. */
export interface RemoteCounts {
  readonly blocks: number;
  readonly hostBlocks: number;
}

/** Of one sequence: they follow one another. */
export class RemoteBlockMap {
  /** With each its place in their order, from 0. Whole ranges lie at one creditor. */
  readonly rblocks = new Map<RBlockId, number>();
  /** Table blocks on their way out, or to be once they are computed: in their order. */
  movesOut: readonly MoveOut[] = [];
  readonly relocations = new Set<Extract<Move, { kind: 'over' }>>();
  /** Some of it was lost, or must go and finds no place: the sequence is computed again. */
  broken = false;
  /** How often a creditor did not answer since something moved. */
  unanswered = 0;
  #outside: ReadonlyMap<InstanceIndex, RemoteCounts> | undefined;

  /** What lies with creditors, and in host memory of its `own` instance. Valid until `changed`. */
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

  /** In their order; those that were lost are missing. */
  get inOrder(): readonly RBlockId[] {
    return [...this.rblocks].sort(([, a], [, b]) => a - b).map(([rblock]) => rblock);
  }

  /** So many will come before those that it has. */
  shift(count: number): void {
    for (const [rblock, index] of this.rblocks) this.rblocks.set(rblock, index + count);
  }

  /** Blocks came, went, or moved. */
  changed(): void {
    this.#outside = undefined;
    this.unanswered = 0;
  }
}

/** `cache`: kept for whoever begins as an ended sequence did. */
export type Holder = Sequence | 'cache';

/** Who holds what. */
export class RemoteBlockRegistry {
  readonly all = new Map<Sequence, RemoteBlockMap>();
  /** Of rBlocks in use, those on their way to be used included. */
  readonly holders = new Map<RBlockId, Holder>();

  /** On their way out, and computed: room is there for them soon. */
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

  /** Those of the sequence that holds the rBlock. */
  of(rblock: RBlockId): RemoteBlockMap | undefined {
    const holder = this.holders.get(rblock);
    return holder === undefined || holder === 'cache' ? undefined : this.all.get(holder);
  }

  /** On its way to where it is to lie. */
  isComing(rblock: RBlockId): boolean {
    return this.of(rblock)?.rblocks.has(rblock) === false;
  }

  /** Throws unless every rBlock is held once, and every sequence has all of its blocks somewhere. @param cached blocks that are kept as cache */
  check(table: RBlockTable, cached: number): void {
    let held = cached;
    for (const [sequence, { rblocks, movesOut: outs, relocations: over, broken }] of this.all) {
      checkOuts(sequence, outs);
      held += rblocks.size;
      for (const out of outs) held += out.rblocks.length;
      for (const { places } of over) held += places.size;
      if (!broken && sequence.awayBlocks !== rblocks.size)
        throw new Error(
          `Borrower broken: arrival ${sequence.arrival} has ${rblocks.size} blocks away, counts ${sequence.awayBlocks}`,
        );
    }
    if (held !== this.holders.size || held !== table.size)
      throw new Error(
        `Borrower broken: ${held} rBlocks held, ${this.holders.size} have a holder, ${table.size} are known`,
      );
  }
}

/** Throws unless each that goes lies right before or behind what is away by then. */
function checkOuts({ arrival, awayFrom, awayBlocks }: Sequence, outs: readonly MoveOut[]): void {
  let [from, to] = awayBlocks > 0 ? [awayFrom, awayFrom + awayBlocks] : [outs[0]?.first, outs[0]?.first];
  for (const { first, rblocks } of outs) {
    const end = first + rblocks.length;
    if (first === to) to = end;
    else if (end === from) from = first;
    else
      throw new Error(`Borrower broken: arrival ${arrival} has a gap before or behind its blocks ${first} to ${end}`);
  }
}
