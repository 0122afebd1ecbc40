// Blocks of an instance's sequences on their way: out to borrowed places, from a recalled place to another, and to the staging buffer.
import type { Sequence } from '../../policy/batching/sequence.ts';
import type { BlockCache } from '../../policy/blocks/block-cache.ts';
import type { RBlockId } from '../../policy/lending/rblock-table.ts';
import type { InstanceId } from '../../policy/lending/terms.ts';
import type { RManager } from '../rmanager.ts';
import { AwayBook } from './away-blocks.ts';
import { BlockMoves, type Move, type MoveDriver, type MoveNumber } from './block-moves.ts';
import type { SettlementId } from './messages.ts';

interface Parts {
  readonly instance: InstanceId;
  readonly rangeBlocks: number;
  readonly cache: BlockCache;
  readonly rmanager: RManager;
  /** All contents of a settlement are staged, or never will be. */
  readonly fetched: (settlement: SettlementId, all: boolean) => void;
}

/** What has arrived is carried out by `carryOut`: tables of sequences change between two steps only. */
export class AwayMoves {
  readonly book = new AwayBook();
  readonly counts = { movedBlocks: 0, vacatedBlocks: 0, homeBlocks: 0, lostBlocks: 0 };
  readonly #parts: Parts;
  readonly #moves: BlockMoves;
  #arrived: Exclude<Move, { kind: 'fetch' }>[] = [];

  constructor(parts: Parts, driver: MoveDriver) {
    this.#parts = parts;
    this.#moves = new BlockMoves(driver);
  }

  /** Blocks on their way out of tables. */
  get outBlocks(): number {
    return this.#moves.outBlocks;
  }

  /** Something makes room at home, or will as soon as no step is in flight. */
  get makesRoom(): boolean {
    return this.#moves.outBlocks > 0 || this.#arrived.length > 0;
  }

  /** All blocks of a part of a move are where they were to go. */
  arrived(number: MoveNumber): void {
    const move = this.#moves.arrived(number);
    if (move === undefined) return;
    if (move.kind === 'fetch') this.#parts.fetched(move.settlement, true);
    else this.#arrived.push(move);
  }

  /** A part will never arrive. What was to leave home is still there; who was to find another place starts again. */
  broke(number: MoveNumber): void {
    const move = this.#moves.of(number);
    if (move === undefined) return;
    if (move.kind === 'fetch') {
      this.#moves.end(move);
      this.#parts.fetched(move.settlement, false);
      return;
    }
    const away = this.book.all.get(move.sequence);
    if (away !== undefined && move.kind === 'over') away.broken = true;
    this.#drop(move);
  }

  /** No step is in flight. */
  carryOut(): void {
    if (this.#arrived.length === 0) return;
    const arrived = this.#arrived;
    this.#arrived = [];
    for (const move of arrived) this.#carryOut(move);
  }

  /** The sequence lets go of whatever it has elsewhere. */
  release(sequence: Sequence): void {
    const away = this.book.all.get(sequence);
    if (away === undefined) return;
    this.book.all.delete(sequence);
    if (away.out !== undefined) this.#drop(away.out);
    for (const move of away.over) this.#drop(move);
    for (const rblock of away.rblocks) this.#free(rblock);
  }

  /** What lies away begins at a whole range. */
  firstToMove({ sharedBlocks = 0 }: Sequence): number {
    return Math.ceil(sharedBlocks / this.#parts.rangeBlocks) * this.#parts.rangeBlocks;
  }

  /** Starts to move `count` blocks of a sequence to places in hand, or as many as there are; false: none. */
  moveOut(sequence: Sequence, count: number): boolean {
    const rblocks: RBlockId[] = [];
    const ways: [InstanceId, InstanceId][] = [];
    while (rblocks.length < count) {
      const rblock = this.#parts.rmanager.take();
      const place = rblock === undefined ? undefined : this.#parts.rmanager.find(rblock);
      if (rblock === undefined || place?.kind !== 'remote') break;
      rblocks.push(rblock);
      ways.push([this.#parts.instance, place.instance]);
      this.book.holders.set(rblock, sequence);
    }
    if (rblocks.length === 0) return false;
    const away = this.book.open(sequence);
    const out = { kind: 'out', sequence, rblocks, pending: 0 } as const;
    away.out = out;
    this.#moves.start(out, ways);
    return true;
  }

  /** Their contents are gone. */
  lose(rblocks: readonly RBlockId[]): void {
    this.counts.lostBlocks += rblocks.length;
    for (const rblock of rblocks) this.#lose(rblock);
  }

  /** A settled block has a place at home. */
  placed(rblock: RBlockId): void {
    this.counts.homeBlocks++;
    this.book.of(rblock)?.changed();
  }

  #lose(rblock: RBlockId): void {
    const away = this.book.of(rblock);
    this.book.holders.delete(rblock);
    if (away === undefined) return;
    away.changed();
    if (away.rblocks.delete(rblock)) away.broken = true;
    // Its contents are still at home, or where they came from.
    if (away.out?.rblocks.includes(rblock) === true) this.#drop(away.out);
    for (const move of away.over) {
      if (![...move.places.values()].includes(rblock)) continue;
      this.#drop(move);
      away.broken = true;
    }
  }

  /** Each goes home, or to another creditor that has been found already; the holder of one that finds no place starts again. */
  vacate(rblocks: readonly RBlockId[]): void {
    const moves = new Map<Sequence, { readonly places: Map<RBlockId, RBlockId>; readonly ways: [number, number][] }>();
    for (const rblock of new Set(rblocks.flatMap((asked) => this.#stopFilling(asked)))) {
      const sequence = this.book.holders.get(rblock);
      const place = this.#parts.rmanager.find(rblock);
      const away = this.book.of(rblock);
      if (sequence === undefined || away === undefined || place?.kind !== 'remote') continue;
      const to = away.broken ? undefined : (this.#parts.rmanager.takeHome('device') ?? this.#parts.rmanager.take());
      if (to === undefined) {
        away.broken = true;
        continue;
      }
      this.book.holders.set(to, sequence);
      const target = this.#parts.rmanager.find(to);
      const { places, ways } = moves.get(sequence) ?? { places: new Map<RBlockId, RBlockId>(), ways: [] };
      places.set(rblock, to);
      ways.push([place.instance, target?.kind === 'remote' ? target.instance : this.#parts.instance]);
      moves.set(sequence, { places, ways });
    }
    for (const [sequence, { places, ways }] of moves) {
      const move = { kind: 'over', sequence, places, pending: 0 } as const;
      this.book.all.get(sequence)?.over.add(move);
      this.#moves.start(move, ways);
    }
  }

  /** Nothing goes to that place any more. Returns what has to leave its own: what was on its way there, else the block itself. */
  #stopFilling(rblock: RBlockId): readonly RBlockId[] {
    const away = this.book.of(rblock);
    if (away?.out?.rblocks.includes(rblock) === true) {
      this.#drop(away.out);
      return [];
    }
    for (const move of away?.over ?? []) {
      if (![...move.places.values()].includes(rblock)) continue;
      this.#drop(move);
      return [...move.places.keys()];
    }
    return [rblock];
  }

  /** Copies contents to the staging buffer. */
  fetch(settlement: SettlementId, rblocks: readonly RBlockId[]): void {
    const ways: [InstanceId, InstanceId][] = [];
    for (const rblock of rblocks) {
      const place = this.#parts.rmanager.find(rblock);
      if (place?.kind === 'remote') ways.push([place.instance, this.#parts.instance]);
    }
    if (ways.length > 0) this.#moves.start({ kind: 'fetch', settlement, pending: 0 }, ways);
  }

  #carryOut(move: Exclude<Move, { kind: 'fetch' }>): void {
    const { sequence } = move;
    const away = this.book.all.get(sequence);
    if (away === undefined || (move.kind === 'out' ? away.out !== move : !away.over.has(move))) return;
    this.#moves.end(move);
    away.changed();
    if (move.kind === 'out') {
      away.out = undefined;
      this.#parts.cache.takeOut(sequence.table, this.firstToMove(sequence), move.rblocks.length);
      sequence.awayBlocks += move.rblocks.length;
      for (const rblock of move.rblocks) away.rblocks.add(rblock);
      this.counts.movedBlocks += move.rblocks.length;
      return;
    }
    away.over.delete(move);
    for (const [before, after] of move.places) {
      if (away.rblocks.delete(before)) this.#free(before);
      away.rblocks.add(after);
      this.counts.vacatedBlocks++;
    }
  }

  /** Its copies are of no use any more; what they came from stays. */
  #drop(move: Exclude<Move, { kind: 'fetch' }>): void {
    this.#moves.end(move);
    for (const rblock of move.kind === 'out' ? move.rblocks : move.places.values()) this.#free(rblock);
    const away = this.book.all.get(move.sequence);
    if (away === undefined) return;
    if (move.kind === 'out') away.out = undefined;
    else away.over.delete(move);
  }

  /** One that was lost is known no more. */
  #free(rblock: RBlockId): void {
    if (this.book.holders.delete(rblock) && this.#parts.rmanager.find(rblock) !== undefined)
      this.#parts.rmanager.free(rblock);
  }
}
