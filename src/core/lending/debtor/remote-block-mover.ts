// Moves blocks of sequences: out to borrowed memory, and from recalled memory to another location.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { InstanceIndex, MoveNumber, RBlockId, StepNumber } from '../../protocol/ids.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RemoteLayout } from '../../scheduler/executor/step-builder.ts';
import type { RManager } from '../rmanager.ts';
import { type RManagerDriver, SettlementCopies } from '../settlement/settlement-copies.ts';
import { BlockLocator } from './block-locator.ts';
import { type BlockLocation, BlockMoves, type BorrowerEffectSink, type Move, type MoveOut } from './block-moves.ts';
import { type RemoteBlockMap, RemoteBlockRegistry } from './remote-blocks.ts';
import { blocksToCache, type RBlockOwner, RemotePrefixCache, type RemotePrefixMatch } from './remote-prefix-cache.ts';
import { StagedBlocks } from './staged-blocks.ts';

/** The parts of a borrower that moves of blocks use. */
export interface BlockMoverContext extends BorrowerEffectSink, RManagerDriver {
  readonly instance: InstanceIndex;
  readonly rangeBlocks: number;
  readonly cache: BlockCache;
  readonly rmanager: RManager;
  /** How long blocks of ended sequences stay at creditors as cache. */
  readonly remoteCacheUs: number;
}

/** `applyArrived` applies finished moves: block tables change only between two steps. */
export class RemoteBlockMover implements RBlockOwner {
  readonly registry = new RemoteBlockRegistry();
  readonly prefixCache: RemotePrefixCache;
  readonly counts = { movedBlocks: 0, hostBlocks: 0, vacatedBlocks: 0, settledBlocks: 0, lostBlocks: 0 };
  readonly #context: BlockMoverContext;
  readonly #moves: BlockMoves;
  #arrived: Exclude<Move, { kind: 'stage' }>[] = [];
  readonly #staged: StagedBlocks;
  readonly #locator: BlockLocator;
  readonly settlementCopies: SettlementCopies;

  constructor(context: BlockMoverContext) {
    const { extraRows } = context.cache;
    if (extraRows === undefined)
      throw new Error('Cannot borrow: the block cache has no page-table rows for blocks outside block tables');
    this.#context = context;
    const stagedBlocks = new StagedBlocks(extraRows, context);
    const blockMoves = new BlockMoves(context);
    const locator = new BlockLocator(context.instance, extraRows, stagedBlocks, context.rmanager);
    const prefixCache = new RemotePrefixCache(context, this);
    this.#staged = stagedBlocks;
    this.#moves = blockMoves;
    this.#locator = locator;
    this.prefixCache = prefixCache;
    const { registry } = this;
    this.settlementCopies = new SettlementCopies({
      ...{ context, registry, blockMoves, locator, stagedBlocks, extraRows, prefixCache },
    });
  }

  /** Blocks that are leaving block tables. */
  get leavingBlocks(): number {
    return this.#moves.leavingBlocks;
  }

  /** True if a move will free memory at home, at the latest once no step is in flight. */
  get freesMemory(): boolean {
    return this.registry.leavingBlocks > 0 || this.#arrived.length > 0;
  }

  /** All blocks of one part of a move have arrived. */
  arrived(number: MoveNumber): void {
    const move = this.#moves.arrived(number);
    if (move === undefined) return;
    if (move.kind === 'stage') this.settlementCopies.arrived(move);
    else this.#arrived.push(move);
  }

  /**
   * One part of a move has failed. Blocks that were leaving are still at home; a sequence whose blocks were relocated is
   * recomputed.
   */
  moveBroken(number: MoveNumber): void {
    const move = this.#moves.of(number);
    if (move === undefined) return;
    if (move.kind === 'stage') {
      this.settlementCopies.failed(move);
      return;
    }
    const remote = this.registry.maps.get(move.sequence);
    if (move.kind === 'moveOut') {
      if (remote !== undefined) this.#cancelMovesFrom(remote, move.rblocks[0]);
      return;
    }
    if (remote !== undefined) remote.broken = true;
    this.#cancelRelocation(move);
  }

  /** Applies the moves that have arrived. No step is in flight. */
  applyArrived(): void {
    this.#staged.applyPlaced((rblock) => this.#context.rmanager.find(rblock));
    if (this.#arrived.length === 0) return;
    const arrived = this.#arrived;
    this.#arrived = [];
    for (const move of arrived) this.#apply(move);
  }

  /**
   * Frees the remote blocks of the sequence.
   * @param cachesUs the current time, if blocks at creditors may stay as cache
   */
  release(sequence: Sequence, cachesUs?: number): void {
    const remote = this.registry.maps.get(sequence);
    if (remote === undefined) return;
    this.registry.maps.delete(sequence);
    for (const out of remote.movesOut) this.#cancelMoveOut(out);
    const cached = cachesUs === undefined ? [] : blocksToCache(sequence, remote, this.#context);
    for (const move of remote.relocations) this.#cancelRelocation(move);
    for (const rblock of cached) this.registry.holders.set(rblock, 'cache');
    if (cachesUs !== undefined && cached.length > 0)
      this.prefixCache.add(cachesUs, sequence.chain, sequence.remoteFrom, cached);
    for (const rblock of remote.rblocks.keys()) if (!this.prefixCache.has(rblock)) this.freeRBlock(rblock);
  }

  /** The sequence starts with remote blocks of an ended one; its table holds the blocks before them. */
  adopt(sequence: Sequence, match: RemotePrefixMatch): void {
    const remote = this.registry.openMap(sequence);
    sequence.sharedBlocks = match.firstBlock;
    sequence.remoteFrom = match.firstBlock;
    for (const rblock of this.prefixCache.take(match)) {
      this.registry.holders.set(rblock, sequence);
      remote.rblocks.set(rblock, sequence.remoteBlocks++);
    }
    sequence.table.groups[0].first = sequence.remoteBlocks;
  }

  /** The first block after the remote and leaving ones: the next blocks leave from there. Remote blocks start at a whole range. */
  endOf(sequence: Sequence): number {
    const { rangeBlocks } = this.#context;
    return this.remoteEndOf(sequence) ?? Math.ceil((sequence.sharedBlocks ?? 0) / rangeBlocks) * rangeBlocks;
  }

  /** The same; undefined if no block is remote or leaving: any whole range that is not shared may leave first. */
  remoteEndOf(sequence: Sequence): number | undefined {
    const last = this.registry.maps.get(sequence)?.movesOut.at(-1);
    if (last !== undefined) return last.first + last.rblocks.length;
    return sequence.remoteBlocks > 0 ? sequence.remoteFrom + sequence.remoteBlocks : undefined;
  }

  /**
   * Moves `count` blocks from `first` on, in whole ranges adjacent to the remote ones, to idle borrowed blocks, as they
   * are computed. Moves fewer if fewer are idle; returns false if none.
   */
  moveOut(sequence: Sequence, first: number, count: number): boolean {
    const { instance, rmanager, rangeBlocks } = this.#context;
    const movesOut: MoveOut[] = [];
    // Remote blocks are contiguous: of the blocks before them the last leave first.
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
    const remote = this.registry.openMap(sequence);
    remote.movesOut = [...remote.movesOut, ...movesOut];
    return true;
  }

  /** Copies computed blocks now. Blocks that the next step computes are copied layer by layer as it runs. */
  fill(step: StepNumber | undefined): void {
    const { blockTokens } = this.#context.cache;
    for (const [sequence, { movesOut }] of this.registry.maps) {
      const { computed, planned, remoteBlocks, remoteFrom, table } = sequence;
      const { blocks } = table.groups[0];
      const row = (block: number) => blocks.at(remoteBlocks === 0 || block < remoteFrom ? block : block - remoteBlocks);
      const have = Math.floor(computed / blockTokens);
      const soon = step === undefined ? have : Math.floor((computed + planned) / blockTokens);
      for (const out of movesOut) this.#moves.fill(out, row, step, have, soon);
    }
  }

  /** How the next step finds the blocks outside the table; undefined: there are none. */
  layoutOf(sequence: Sequence): RemoteLayout | undefined {
    const remote = this.registry.maps.get(sequence);
    if (remote === undefined || remote.rblocks.size === 0) return undefined;
    return this.#locator.layoutOf(sequence.remoteFrom, remote.inOrder);
  }

  /** The contents of these are lost. */
  rblocksLost(rblocks: readonly RBlockId[]): void {
    this.counts.lostBlocks += rblocks.length;
    for (const rblock of rblocks) this.#loseRBlock(rblock);
  }

  /** A settled block has memory at home. */
  placed(rblock: RBlockId): void {
    this.counts.settledBlocks++;
    this.#staged.placed(rblock);
    this.registry.mapOf(rblock)?.changed();
    // Memory at home is for running sequences, not for cache.
    this.prefixCache.truncateAt(rblock);
  }

  #loseRBlock(rblock: RBlockId): void {
    this.prefixCache.truncateAt(rblock);
    const remote = this.registry.mapOf(rblock);
    this.registry.holders.delete(rblock);
    this.#staged.discard(rblock);
    if (remote === undefined) return;
    remote.changed();
    if (remote.rblocks.delete(rblock)) remote.broken = true;
    // If it was a target, its contents are still at their source.
    this.#cancelMovesFrom(remote, rblock);
    for (const move of remote.relocations) {
      if (![...move.places.values()].includes(rblock)) continue;
      this.#cancelRelocation(move);
      remote.broken = true;
    }
  }

  /**
   * Relocates each range with one of these blocks: home, else to another creditor with idle blocks. If neither has
   * memory, the sequence is recomputed.
   */
  vacate(rblocks: readonly RBlockId[]): void {
    const bySequence = new Map<Sequence, Set<number>>();
    for (const rblock of rblocks) this.prefixCache.truncateAt(rblock);
    for (const rblock of rblocks.flatMap((recalled) => this.#stopFilling(recalled))) {
      const sequence = this.registry.holders.get(rblock);
      const index = this.registry.mapOf(rblock)?.rblocks.get(rblock);
      if (sequence === undefined || sequence === 'cache' || index === undefined) continue;
      const ranges = bySequence.get(sequence) ?? new Set();
      bySequence.set(sequence, ranges.add(Math.floor(index / this.#context.rangeBlocks)));
    }
    for (const [sequence, ranges] of bySequence) this.#vacateRanges(sequence, [...ranges]);
  }

  #vacateRanges(sequence: Sequence, ranges: readonly number[]): void {
    const remote = this.registry.openMap(sequence);
    if (remote.broken) return;
    const { rangeBlocks, rmanager } = this.#context;
    const { inOrder } = remote;
    const places = new Map<RBlockId, RBlockId>();
    const pairs: [BlockLocation, BlockLocation][] = [];
    for (const range of ranges) {
      const leaving = inOrder.slice(range * rangeBlocks, (range + 1) * rangeBlocks);
      // Part of a committed settlement, which brings it home.
      if (leaving.some((rblock) => rmanager.find(rblock)?.kind !== 'remote')) continue;
      const targets = this.#allocateTargets(leaving.length);
      if (targets === undefined) remote.broken = true;
      for (const [i, after] of (targets ?? []).entries()) {
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

  #allocateTargets(count: number): readonly RBlockId[] | undefined {
    const { rmanager, cache } = this.#context;
    if (cache.availablePages < count * cache.blockPages) return rmanager.takeOutside(count);
    return Array.from({ length: count }, () => {
      const home = rmanager.takeHome('device');
      if (home === undefined) throw new Error('Borrower broken: an available block cannot be allocated');
      return home;
    });
  }

  /** Stops copies to the block. Returns the blocks that must leave: the sources of its relocation, else the block itself. */
  #stopFilling(rblock: RBlockId): readonly RBlockId[] {
    const remote = this.registry.mapOf(rblock);
    if (remote !== undefined && this.#cancelMovesFrom(remote, rblock)) return [];
    for (const move of remote?.relocations ?? []) {
      if (![...move.places.values()].includes(rblock)) continue;
      this.#cancelRelocation(move);
      return [...move.places.keys()];
    }
    return [rblock];
  }

  /** Cancels the moves out from this block on, because remote blocks are contiguous. False if no move contains it. */
  #cancelMovesFrom(remote: RemoteBlockMap, rblock: RBlockId): boolean {
    const from = remote.movesOut.findIndex(({ rblocks }) => rblocks.includes(rblock));
    if (from < 0) return false;
    const dropped = remote.movesOut.slice(from);
    remote.movesOut = remote.movesOut.slice(0, from);
    for (const out of dropped) this.#cancelMoveOut(out);
    return true;
  }

  #cancelMoveOut(out: MoveOut): void {
    this.#moves.end(out);
    for (const rblock of out.rblocks) this.freeRBlock(rblock);
  }

  #apply(move: Exclude<Move, { kind: 'stage' }>): void {
    const { sequence } = move;
    const remote = this.registry.maps.get(sequence);
    if (move.kind === 'moveOut') {
      move.arrived = true;
      while (remote?.movesOut[0]?.arrived === true) this.#applyMoveOut(remote.movesOut[0], remote);
      return;
    }
    if (remote === undefined || !remote.relocations.has(move)) return;
    this.#moves.end(move);
    remote.changed();
    remote.relocations.delete(move);
    for (const [before, after] of move.places) {
      const index = remote.rblocks.get(before);
      // The block was lost meanwhile: its sequence is recomputed.
      if (index === undefined) this.freeRBlock(after);
      else {
        remote.rblocks.delete(before);
        this.freeRBlock(before);
        remote.rblocks.set(after, index);
        this.counts.vacatedBlocks++;
      }
    }
  }

  /** The first move out is complete: its blocks at home become free. */
  #applyMoveOut(out: MoveOut, remote: RemoteBlockMap): void {
    const { sequence, first, rblocks } = out;
    this.#moves.end(out);
    remote.changed();
    remote.movesOut = remote.movesOut.slice(1);
    const { length: count } = rblocks;
    const isBefore = sequence.remoteBlocks === 0 || first < sequence.remoteFrom;
    this.#context.cache.detach(sequence.table, isBefore ? first : sequence.remoteFrom, count);
    if (isBefore) {
      sequence.remoteFrom = first;
      remote.shift(count);
    }
    for (const [i, rblock] of rblocks.entries()) {
      remote.rblocks.set(rblock, isBefore ? i : sequence.remoteBlocks + i);
      const place = this.#context.rmanager.find(rblock);
      if (place !== undefined && place.kind !== 'staged' && place.memory === 'host') this.counts.hostBlocks++;
    }
    sequence.remoteBlocks += count;
    this.counts.movedBlocks += count;
  }

  /** Frees the targets of a relocation; the sources stay. */
  #cancelRelocation(move: Extract<Move, { kind: 'relocate' }>): void {
    this.#moves.end(move);
    for (const rblock of move.places.values()) this.freeRBlock(rblock);
    this.registry.maps.get(move.sequence)?.relocations.delete(move);
  }

  /** Throws unless every rBlock has one holder, and every sequence has all of its blocks somewhere. */
  check(): void {
    this.registry.check(this.#context.rmanager.table, this.prefixCache.blocks);
    this.#staged.check();
  }

  /** Frees an rBlock. A lost one is no longer in the table of rBlocks. */
  freeRBlock(rblock: RBlockId): void {
    this.#staged.discard(rblock);
    if (this.registry.holders.delete(rblock) && this.#context.rmanager.find(rblock) !== undefined)
      this.#context.rmanager.free(rblock);
  }
}
