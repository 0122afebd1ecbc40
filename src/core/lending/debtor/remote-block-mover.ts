// Moves blocks of sequences: out to borrowed memory, and from recalled memory to another place.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { InstanceIndex, MoveNumber, RBlockId, SettlementId, StepNumber } from '../../protocol/ids.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RemoteLayout } from '../../scheduler/executor/step-builder.ts';
import type { RManager } from '../rmanager.ts';
import { SettlementCopies } from '../settlement/settlement-copies.ts';
import { BlockLocator } from './block-locator.ts';
import { type BlockLocation, BlockMoves, type Move, type MoveDriver, type MoveOut } from './block-moves.ts';
import { type RemoteBlockMap, RemoteBlockRegistry } from './remote-blocks.ts';
import { remoteLayout } from './remote-layout.ts';
import { blocksToKeep, RemotePrefixCache, type RemotePrefixMatch } from './remote-prefix-cache.ts';
import { StagedBlocks } from './staged-blocks.ts';

interface Parts {
  readonly instance: InstanceIndex;
  readonly rangeBlocks: number;
  readonly cache: BlockCache;
  readonly rmanager: RManager;
  /** All contents of a settlement are staged, or staging failed. */
  readonly fetched: (settlement: SettlementId, all: boolean) => void;
  /** How long blocks of ended sequences stay at creditors as cache. */
  readonly remoteCacheUs: number;
}

/** `applyArrived` applies finished moves: block tables change only between two steps. */
export class RemoteBlockMover {
  readonly registry = new RemoteBlockRegistry();
  readonly cache: RemotePrefixCache;
  readonly counts = { movedBlocks: 0, hostBlocks: 0, vacatedBlocks: 0, homeBlocks: 0, lostBlocks: 0 };
  readonly #parts: Parts;
  readonly #moves: BlockMoves;
  #arrived: Exclude<Move, { kind: 'stage' }>[] = [];
  readonly #staged: StagedBlocks;
  readonly #locator: BlockLocator;
  /** Copies of settlements. */
  readonly copies: SettlementCopies;

  constructor(parts: Parts, driver: MoveDriver) {
    const { extraRows } = parts.cache;
    if (extraRows === undefined)
      throw new Error('Cannot borrow: the block cache has no page-table rows for blocks outside block tables');
    this.#parts = parts;
    const stagedBlocks = new StagedBlocks(extraRows, driver);
    const blockMoves = new BlockMoves(driver);
    const locator = new BlockLocator(parts.instance, extraRows, stagedBlocks, parts.rmanager);
    const cache = new RemotePrefixCache(parts.rangeBlocks, parts.remoteCacheUs, (rblock) => this.#free(rblock));
    this.#staged = stagedBlocks;
    this.#moves = blockMoves;
    this.#locator = locator;
    this.cache = cache;
    const { registry } = this;
    this.copies = new SettlementCopies({
      ...{ registry, blockMoves, locator, stagedBlocks, extraRows, cache },
      fetched: parts.fetched,
    });
  }

  /** Blocks on their way out of tables. */
  get leavingBlocks(): number {
    return this.#moves.leavingBlocks;
  }

  /** Some move frees memory at home, at the latest once no step is in flight. */
  get makesRoom(): boolean {
    return this.registry.leavingBlocks > 0 || this.#arrived.length > 0;
  }

  /** All blocks of one part of a move have arrived. */
  arrived(number: MoveNumber): void {
    const move = this.#moves.arrived(number);
    if (move === undefined) return;
    if (move.kind === 'stage') this.copies.arrived(move);
    else this.#arrived.push(move);
  }

  /**
   * One part will never arrive. Blocks that were leaving are still at home; a sequence whose blocks were relocating is
   * recomputed.
   */
  moveBroken(number: MoveNumber): void {
    const move = this.#moves.of(number);
    if (move === undefined) return;
    if (move.kind === 'stage') {
      this.copies.broken(move);
      return;
    }
    const remote = this.registry.all.get(move.sequence);
    if (move.kind === 'moveOut') {
      if (remote !== undefined) this.#dropFrom(remote, move.rblocks[0]);
      return;
    }
    if (remote !== undefined) remote.broken = true;
    this.#drop(move);
  }

  /** No step is in flight. */
  applyArrived(): void {
    this.#staged.settle((rblock) => this.#parts.rmanager.find(rblock));
    if (this.#arrived.length === 0) return;
    const arrived = this.#arrived;
    this.#arrived = [];
    for (const move of arrived) this.#carryOut(move);
  }

  /**
   * The sequence frees its remote blocks.
   * @param keepsUs the current time, if blocks at creditors may stay as cache
   */
  release(sequence: Sequence, keepsUs?: number): void {
    const remote = this.registry.all.get(sequence);
    if (remote === undefined) return;
    this.registry.all.delete(sequence);
    for (const out of remote.movesOut) this.#cancelMoveOut(out);
    const kept = keepsUs === undefined ? [] : blocksToKeep(sequence, remote, this.#parts);
    for (const move of remote.relocations) this.#drop(move);
    for (const rblock of kept) this.registry.holders.set(rblock, 'cache');
    if (keepsUs !== undefined && kept.length > 0) this.cache.keep(keepsUs, sequence.chain, sequence.remoteFrom, kept);
    for (const rblock of remote.rblocks.keys()) if (!this.cache.has(rblock)) this.#free(rblock);
  }

  /** A sequence starts with the remote blocks of an ended one; its table holds the blocks before them. */
  adopt(sequence: Sequence, match: RemotePrefixMatch): void {
    const remote = this.registry.open(sequence);
    sequence.sharedBlocks = match.firstBlock;
    sequence.remoteFrom = match.firstBlock;
    for (const rblock of this.cache.take(match)) {
      this.registry.holders.set(rblock, sequence);
      remote.rblocks.set(rblock, sequence.remoteBlocks++);
    }
    sequence.table.groups[0].first = sequence.remoteBlocks;
  }

  /**
   * The first block behind the remote and leaving ones, from which the next blocks may leave. Remote blocks start at a
   * whole range.
   */
  endOf(sequence: Sequence): number {
    const { rangeBlocks } = this.#parts;
    return this.remoteEndOf(sequence) ?? Math.ceil((sequence.sharedBlocks ?? 0) / rangeBlocks) * rangeBlocks;
  }

  /** Undefined: no block is remote or leaving, and any unshared whole range may be the first to leave. */
  remoteEndOf(sequence: Sequence): number | undefined {
    const last = this.registry.all.get(sequence)?.movesOut.at(-1);
    if (last !== undefined) return last.first + last.rblocks.length;
    return sequence.remoteBlocks > 0 ? sequence.remoteFrom + sequence.remoteBlocks : undefined;
  }

  /**
   * Moves `count` blocks from `first` on, in whole ranges adjacent to the remote ones, to borrowed blocks in hand, as
   * they are computed. Moves fewer when fewer are in hand; false: none.
   */
  moveOut(sequence: Sequence, first: number, count: number): boolean {
    const { instance, rmanager, rangeBlocks } = this.#parts;
    const movesOut: MoveOut[] = [];
    // Remote blocks have no gaps: of the blocks before them the last leave first.
    const isBefore = first < sequence.remoteFrom;
    for (let moved = 0; moved < count; moved += rangeBlocks) {
      const rblocks = rmanager.takeOutside(rangeBlocks);
      if (rblocks === undefined) break;
      for (const rblock of rblocks) this.registry.holders.set(rblock, sequence);
      const targets = rblocks.map((rblock) => this.#locator.of(rblock));
      const at = isBefore ? first + count - moved - rangeBlocks : first + moved;
      movesOut.push(this.#moves.open({ sequence, first: at, rblocks }, instance, targets));
    }
    if (movesOut.length === 0) return false;
    const remote = this.registry.open(sequence);
    remote.movesOut = [...remote.movesOut, ...movesOut];
    return true;
  }

  /** Copies computed blocks now, and blocks that the next step computes layer by layer with it. */
  fill(step: StepNumber | undefined): void {
    const { blockTokens } = this.#parts.cache;
    for (const [sequence, { movesOut }] of this.registry.all) {
      const { computed, planned, remoteBlocks, remoteFrom, table } = sequence;
      const { blocks } = table.groups[0];
      const row = (block: number) => blocks.at(remoteBlocks === 0 || block < remoteFrom ? block : block - remoteBlocks);
      const have = Math.floor(computed / blockTokens);
      const soon = step === undefined ? have : Math.floor((computed + planned) / blockTokens);
      for (const out of movesOut) this.#moves.fill(out, row, step, have, soon);
    }
  }

  /** Where the next step finds the blocks outside the table; undefined: there are none. */
  layoutOf(sequence: Sequence): RemoteLayout | undefined {
    const remote = this.registry.all.get(sequence);
    if (remote === undefined || remote.rblocks.size === 0) return undefined;
    const locator = remote.inOrder.map((rblock) => this.#locator.of(rblock));
    return remoteLayout(this.#parts.instance, sequence.remoteFrom, locator);
  }

  /** The contents of these are gone. */
  lose(rblocks: readonly RBlockId[]): void {
    this.counts.lostBlocks += rblocks.length;
    for (const rblock of rblocks) this.#lose(rblock);
  }

  /** Memory at home is free for a settled block. */
  placed(rblock: RBlockId): void {
    this.counts.homeBlocks++;
    this.#staged.placed(rblock);
    this.registry.of(rblock)?.changed();
    // Memory at home is for running sequences, not for cache.
    this.cache.cutAt(rblock);
  }

  #lose(rblock: RBlockId): void {
    this.cache.cutAt(rblock);
    const remote = this.registry.of(rblock);
    this.registry.holders.delete(rblock);
    this.#staged.drop(rblock);
    if (remote === undefined) return;
    remote.changed();
    if (remote.rblocks.delete(rblock)) remote.broken = true;
    // Its contents are still at home or at their source.
    this.#dropFrom(remote, rblock);
    for (const move of remote.relocations) {
      if (![...move.places.values()].includes(rblock)) continue;
      this.#drop(move);
      remote.broken = true;
    }
  }

  /**
   * Each affected range goes home or to another creditor with idle blocks; a sequence whose range finds no place is
   * recomputed.
   */
  vacate(rblocks: readonly RBlockId[]): void {
    const ranges = new Map<Sequence, Set<number>>();
    for (const rblock of rblocks) this.cache.cutAt(rblock);
    for (const rblock of rblocks.flatMap((asked) => this.#stopFilling(asked))) {
      const sequence = this.registry.holders.get(rblock);
      const index = this.registry.of(rblock)?.rblocks.get(rblock);
      if (sequence === undefined || sequence === 'cache' || index === undefined) continue;
      const of = ranges.get(sequence) ?? new Set();
      ranges.set(sequence, of.add(Math.floor(index / this.#parts.rangeBlocks)));
    }
    for (const [sequence, of] of ranges) this.#vacateRanges(sequence, [...of]);
  }

  #vacateRanges(sequence: Sequence, ranges: readonly number[]): void {
    const remote = this.registry.open(sequence);
    if (remote.broken) return;
    const { rangeBlocks, rmanager } = this.#parts;
    const { inOrder } = remote;
    const places = new Map<RBlockId, RBlockId>();
    const pairs: [BlockLocation, BlockLocation][] = [];
    for (const range of ranges) {
      const leaving = inOrder.slice(range * rangeBlocks, (range + 1) * rangeBlocks);
      // Part of a committed settlement: it comes home by itself.
      if (leaving.some((rblock) => rmanager.find(rblock)?.kind !== 'remote')) continue;
      const to = this.#placesFor(leaving.length);
      if (to === undefined) remote.broken = true;
      for (const [i, after] of (to ?? []).entries()) {
        places.set(leaving[i], after);
        pairs.push([this.#locator.of(leaving[i]), this.#locator.of(after)]);
        this.registry.holders.set(after, sequence);
      }
    }
    if (places.size === 0) return;
    const move = { kind: 'relocate', sequence, places, pending: 0 } as const;
    remote.relocations.add(move);
    this.#moves.start(move, pairs);
  }

  #placesFor(count: number): readonly RBlockId[] | undefined {
    const { rmanager, cache } = this.#parts;
    if (cache.availablePages < count * cache.blockPages) return rmanager.takeOutside(count);
    return Array.from({ length: count }, () => {
      const home = rmanager.takeHome('device');
      if (home === undefined) throw new Error('Borrower broken: pages that were there cannot be had');
      return home;
    });
  }

  /**
   * Stops copies to that block. Returns the blocks that must leave: the sources of a relocation, else the block itself.
   */
  #stopFilling(rblock: RBlockId): readonly RBlockId[] {
    const remote = this.registry.of(rblock);
    if (remote !== undefined && this.#dropFrom(remote, rblock)) return [];
    for (const move of remote?.relocations ?? []) {
      if (![...move.places.values()].includes(rblock)) continue;
      this.#drop(move);
      return [...move.places.keys()];
    }
    return [rblock];
  }

  /** Cancels moves from this block on: remote blocks have no gaps. False when no move contains it. */
  #dropFrom(remote: RemoteBlockMap, rblock: RBlockId): boolean {
    const from = remote.movesOut.findIndex(({ rblocks }) => rblocks.includes(rblock));
    if (from < 0) return false;
    const dropped = remote.movesOut.slice(from);
    remote.movesOut = remote.movesOut.slice(0, from);
    for (const out of dropped) this.#cancelMoveOut(out);
    return true;
  }

  #cancelMoveOut(out: MoveOut): void {
    this.#moves.end(out);
    for (const rblock of out.rblocks) this.#free(rblock);
  }

  #carryOut(move: Exclude<Move, { kind: 'stage' }>): void {
    const { sequence } = move;
    const remote = this.registry.all.get(sequence);
    if (move.kind === 'moveOut') {
      move.arrived = true;
      while (remote?.movesOut[0]?.arrived === true) this.#takeOut(remote.movesOut[0], remote);
      return;
    }
    if (remote === undefined || !remote.relocations.has(move)) return;
    this.#moves.end(move);
    remote.changed();
    remote.relocations.delete(move);
    for (const [before, after] of move.places) {
      const index = remote.rblocks.get(before);
      // The block was lost meanwhile: its sequence is recomputed.
      if (index === undefined) this.#free(after);
      else {
        remote.rblocks.delete(before);
        this.#free(before);
        remote.rblocks.set(after, index);
        this.counts.vacatedBlocks++;
      }
    }
  }

  /** Its blocks at home become free. */
  #takeOut(out: MoveOut, remote: RemoteBlockMap): void {
    const { sequence, first, rblocks } = out;
    this.#moves.end(out);
    remote.changed();
    remote.movesOut = remote.movesOut.slice(1);
    const { length: count } = rblocks;
    const isBefore = sequence.remoteBlocks === 0 || first < sequence.remoteFrom;
    this.#parts.cache.detach(sequence.table, isBefore ? first : sequence.remoteFrom, count);
    if (isBefore) {
      sequence.remoteFrom = first;
      remote.shift(count);
    }
    for (const [i, rblock] of rblocks.entries()) {
      remote.rblocks.set(rblock, isBefore ? i : sequence.remoteBlocks + i);
      const place = this.#parts.rmanager.find(rblock);
      if (place !== undefined && place.kind !== 'staged' && place.memory === 'host') this.counts.hostBlocks++;
    }
    sequence.remoteBlocks += count;
    this.counts.movedBlocks += count;
  }

  /** Discards the copies of a relocation; the sources stay. */
  #drop(move: Extract<Move, { kind: 'relocate' }>): void {
    this.#moves.end(move);
    for (const rblock of move.places.values()) this.#free(rblock);
    this.registry.all.get(move.sequence)?.relocations.delete(move);
  }

  /** Throws unless every rBlock has one holder, and every sequence has all of its blocks somewhere. */
  check(): void {
    this.registry.check(this.#parts.rmanager.table, this.cache.blocks);
    this.#staged.check();
  }

  /** A lost rBlock is no longer in the table. */
  #free(rblock: RBlockId): void {
    this.#staged.drop(rblock);
    if (this.registry.holders.delete(rblock) && this.#parts.rmanager.find(rblock) !== undefined)
      this.#parts.rmanager.free(rblock);
  }
}
