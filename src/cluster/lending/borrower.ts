// What an instance that serves requests does with borrowed memory: moves blocks of long sequences there, and lets go when they are lost or wanted back.
import type { Batcher } from '../../policy/batching/batcher.ts';
import type { Overflow, Relief } from '../../policy/batching/overflow.ts';
import type { Sequence } from '../../policy/batching/sequence.ts';
import type { BlockCache } from '../../policy/blocks/block-cache.ts';
import type { StepShape } from '../../policy/cost/step-shape.ts';
import type { LendingPolicy } from '../../policy/lending/borrowing.ts';
import { LendingMemory } from '../../policy/lending/lending-memory.ts';
import type { RBlockId } from '../../policy/lending/rblock-table.ts';
import type { InstanceId } from '../../policy/lending/terms.ts';
import type { InstanceEvent } from '../messages.ts';
import { RManager } from '../rmanager.ts';
import { AwayBook } from './away-blocks.ts';
import { BlockMoves, type BlocksToMove, type Move, type MoveNumber } from './block-moves.ts';
import { DemandTeller } from './demand.ts';
import type { Envelope, LendingEffect, RManagerEvent, SettlementId } from './messages.ts';
import { type RemoteWork, remoteWork } from './remote-work.ts';
import { Stalls } from './stalls.ts';
import type { LendingTimes } from './times.ts';

export interface BorrowingConfig {
  readonly instance: InstanceId;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
  readonly stagingBlocks: number;
  /** Blocks that all others together may lend: what a request may need beyond the instance's own. */
  readonly borrowableBlocks: number;
  /** Blocks that move together: those of whole attention ranges. */
  readonly rangeBlocks: number;
  /** For memory that nobody gives: then a sequence starts again, and a prompt that waits lets others try. */
  readonly patienceUs: number;
}

export type BorrowerEffect =
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  | ({ readonly kind: 'moveBlocks' } & BlocksToMove)
  /** Nobody wants what is under way of this move. */
  | { readonly kind: 'stopMove'; readonly move: MoveNumber };

export type BorrowerEvent = Extract<InstanceEvent<never, never>, { kind: 'lending' | 'moved' | 'guestLoad' | 'wake' }>;

export interface BorrowingTotals {
  readonly lentBlocks: number;
  readonly borrowedBlocks: number;
  readonly remoteBlocks: number;
  readonly movedBlocks: number;
  readonly vacatedBlocks: number;
  readonly homeBlocks: number;
  readonly lostBlocks: number;
  readonly stalls: number;
  readonly stallUs: number;
}

/** Tables of sequences change between two steps only. */
export class Borrower implements Overflow {
  readonly rmanager: RManager;
  readonly stalls: Stalls;
  readonly #config: BorrowingConfig;
  readonly #cache: BlockCache;
  readonly #push: (effect: BorrowerEffect) => void;
  readonly #away = new AwayBook();
  readonly #moves: BlockMoves;
  /** Complete, to be carried out between two steps. */
  #arrived: Exclude<Move, { kind: 'fetch' }>[] = [];
  readonly #demand: DemandTeller;
  #batcher: Batcher | undefined;
  #nowUs = 0;
  readonly #counts = { movedBlocks: 0, vacatedBlocks: 0, homeBlocks: 0, lostBlocks: 0 };

  constructor(config: BorrowingConfig, cache: BlockCache, push: (effect: BorrowerEffect) => void) {
    const { instance, policy, times, stagingBlocks, patienceUs } = config;
    this.#config = config;
    this.#cache = cache;
    this.#push = push;
    const memories = { device: cache.lending, host: LendingMemory.alone(0, cache.blockPages) };
    this.rmanager = new RManager({ instance, life: 1, memories, policy, times, stagingBlocks });
    this.#moves = new BlockMoves({
      start: (part) => push({ kind: 'moveBlocks', ...part }),
      stop: (move) => push({ kind: 'stopMove', move }),
    });
    // Two that wait for one another do not give up at the same time.
    this.stalls = new Stalls(patienceUs * (1 + instance));
    this.#demand = new DemandTeller(patienceUs, patienceUs * (1 + instance));
  }

  /** The batcher whose sequences it moves. */
  serve(batcher: Batcher): void {
    this.#batcher = batcher;
  }

  get nextUs(): number {
    // What was due before is looked at in the next plan.
    const later = (us: number) => (us > this.#nowUs ? us : Number.POSITIVE_INFINITY);
    return Math.min(this.rmanager.nextUs, later(this.stalls.nextUs), later(this.#demand.nextUs));
  }

  /** Somebody waits for memory that is asked for: nothing need run. */
  get awaited(): number {
    return this.stalls.size + Number(this.#demand.starves);
  }

  get totals(): BorrowingTotals {
    const { rmanager } = this;
    let remoteBlocks = 0;
    for (const away of this.#away.all.values()) {
      for (const blocks of away.atCreditors(rmanager.table).values()) remoteBlocks += blocks;
    }
    return {
      ...this.#counts,
      lentBlocks: sum(rmanager.creditor.totals),
      borrowedBlocks: sum(rmanager.debtor.totals),
      remoteBlocks,
      stalls: this.stalls.count,
      stallUs: this.stalls.us,
    };
  }

  /** Whatever its instance hears; a `wake` may also mean that a plan is to be made again. */
  hear(nowUs: number, event: BorrowerEvent | { readonly kind: string }): void {
    this.#nowUs = nowUs;
    this.#demand.advance(nowUs);
    if (!isOurs(event)) return;
    if (event.kind === 'lending') this.#hear({ kind: 'message', envelope: event.envelope });
    else if (event.kind === 'moved') this.#moved(event.move);
    else if (event.kind === 'guestLoad') this.#bound(event);
    else if (this.rmanager.nextUs <= nowUs) this.#hear({ kind: 'tick' });
  }

  /** What exceeds the bound goes back as far as there is room at home; what stays is slowed down to the bound. */
  #bound(event: Extract<BorrowerEvent, { kind: 'guestLoad' }>): void {
    const held = this.rmanager.debtor.totals.find(({ creditor }) => creditor === event.creditor)?.blocks ?? 0;
    const { availablePages, blockPages } = this.#cache;
    const room = Math.floor(availablePages / blockPages) - this.#config.policy.highWaterBlocks;
    if (room >= held) this.#hear(event);
  }

  #hear(event: RManagerEvent): void {
    for (const effect of this.rmanager.step(this.#nowUs, event)) this.#follow(effect);
  }

  /** All blocks of a part of a move are where they were to go. */
  #moved(number: MoveNumber): void {
    const move = this.#moves.arrived(number);
    if (move === undefined) return;
    if (move.kind === 'fetch') this.#hear({ kind: 'fetched', settlement: move.settlement });
    else this.#arrived.push(move);
  }

  /** No step is in flight: tables change now, and sequences that lost blocks go back to the queue. */
  between(): void {
    if (this.#arrived.length > 0) {
      const arrived = this.#arrived;
      this.#arrived = [];
      for (const move of arrived) this.#carryOut(move);
    }
    for (const [sequence, { broken }] of this.#away.all) if (broken) this.#batcher?.recompute(sequence);
  }

  /** A plan is made: tells what is needed from now on, and moves out what will have to. */
  planned(step?: { readonly shape: StepShape; readonly predictedUs: number }): void {
    const batcher = this.#batcher;
    if (batcher === undefined) return;
    const { rows, decodeRows } = step?.shape ?? nothing;
    const predictedUs = step?.predictedUs ?? 1;
    this.stalls.planned(this.#nowUs);
    const { availablePages, blockPages, blockTokens } = this.#cache;
    const available = Math.floor(availablePages / blockPages);
    const running = batcher.running.length + batcher.parked.size;
    const alone = running === 0 && batcher.waiting.length > 0;
    const ahead = Math.ceil(batcher.pagesAhead / blockPages) - this.#moves.outBlocks;
    const inHand = this.rmanager.debtor.inHand;
    const figures = { rows, decodeRows, available, ahead, inHand, alone };
    const event = this.#demand.tell(this.#nowUs, figures, (decodeRows * 1e6) / (blockTokens * predictedUs));
    if (event !== undefined) this.#hear(event);
    while (this.#spill()) {}
  }

  remoteWork(planned: readonly { readonly sequence: Sequence }[]): readonly RemoteWork[] | undefined {
    if (this.#away.all.size === 0) return undefined;
    const { table, debts } = this.rmanager;
    return remoteWork(planned, this.#away.all, table, debts, this.#cache.blockTokens);
  }

  get pagesInHand(): number {
    const inHand = this.#demand.paused ? 0 : this.rmanager.debtor.inHand;
    return (inHand + this.#moves.outBlocks) * this.#cache.blockPages;
  }

  relieve(sequence: Sequence): Relief {
    const stall = this.stalls.meet(this.#nowUs, sequence);
    if (stall === 'too long') {
      this.#demand.pause(this.#nowUs);
      return 'hopeless';
    }
    if (this.#moves.outBlocks > 0 || this.#arrived.length > 0 || this.#spill()) return 'coming';
    return stall === 'new' || this.rmanager.isAsking ? 'coming' : 'none';
  }

  release(sequence: Sequence): void {
    this.stalls.end(this.#nowUs, sequence);
    const away = this.#away.all.get(sequence);
    if (away === undefined) return;
    this.#away.all.delete(sequence);
    if (away.out !== undefined) this.#drop(away.out);
    for (const move of away.over) this.#drop(move);
    for (const rblock of away.rblocks) this.#free(rblock);
  }

  /** Starts to move out what one sequence can spare, if home runs short and there is a place: true when it did. */
  #spill(): boolean {
    const { policy, rangeBlocks } = this.#config;
    const inHand = this.rmanager.debtor.inHand;
    if (inHand === 0 || this.#batcher === undefined) return false;
    const { availablePages, blockPages } = this.#cache;
    const ahead = Math.ceil(this.#batcher.pagesAhead / blockPages);
    const short = policy.lowWaterBlocks + ahead - Math.floor(availablePages / blockPages) - this.#moves.outBlocks;
    if (short <= 0) return false;
    const sequences = [...this.#batcher.running]
      .map((sequence) => ({ sequence, blocks: this.#movable(sequence) }))
      .filter(({ blocks }) => blocks >= rangeBlocks)
      .sort((a, b) => b.blocks - a.blocks || a.sequence.arrival - b.sequence.arrival);
    for (const { sequence } of sequences) {
      this.#batcher.disown(sequence);
      const most = Math.min(this.#movable(sequence), inHand);
      const count = Math.min(Math.ceil(short / rangeBlocks), Math.floor(most / rangeBlocks)) * rangeBlocks;
      if (count > 0 && this.#moveOut(sequence, count)) return true;
    }
    return false;
  }

  /** Blocks that could go: computed, its own, beginning at a whole range; the last range stays, since it grows. */
  #movable(sequence: Sequence): number {
    const away = this.#away.all.get(sequence);
    if (away?.out !== undefined || away?.broken === true) return 0;
    const { rangeBlocks } = this.#config;
    const computed = Math.floor(sequence.computed / this.#cache.blockTokens);
    return computed - rangeBlocks - this.#firstToMove(sequence) - sequence.awayBlocks;
  }

  /** What lies away begins at a whole range. */
  #firstToMove({ sharedBlocks = 0 }: Sequence): number {
    return Math.ceil(sharedBlocks / this.#config.rangeBlocks) * this.#config.rangeBlocks;
  }

  #moveOut(sequence: Sequence, count: number): boolean {
    const rblocks: RBlockId[] = [];
    const ways: [InstanceId, InstanceId][] = [];
    while (rblocks.length < count) {
      const rblock = this.rmanager.take();
      const place = rblock === undefined ? undefined : this.rmanager.find(rblock);
      if (rblock === undefined || place?.kind !== 'remote') break;
      rblocks.push(rblock);
      ways.push([this.#config.instance, place.instance]);
      this.#away.holders.set(rblock, sequence);
    }
    if (rblocks.length === 0) return false;
    const away = this.#away.open(sequence);
    const out = { kind: 'out', sequence, rblocks, pending: 0 } as const;
    away.out = out;
    this.#moves.start(out, ways);
    return true;
  }

  #carryOut(move: Exclude<Move, { kind: 'fetch' }>): void {
    const { sequence } = move;
    const away = this.#away.all.get(sequence);
    if (away === undefined || (move.kind === 'out' ? away.out !== move : !away.over.has(move))) return;
    this.#moves.end(move);
    away.changed();
    if (move.kind === 'out') {
      away.out = undefined;
      this.#cache.takeOut(sequence.table, this.#firstToMove(sequence), move.rblocks.length);
      sequence.awayBlocks += move.rblocks.length;
      for (const rblock of move.rblocks) away.rblocks.add(rblock);
      this.#counts.movedBlocks += move.rblocks.length;
      return;
    }
    away.over.delete(move);
    for (const [before, after] of move.places) {
      if (away.rblocks.delete(before)) this.#free(before);
      away.rblocks.add(after);
      this.#counts.vacatedBlocks++;
    }
  }

  /** Its copies are of no use any more; what they came from stays. */
  #drop(move: Exclude<Move, { kind: 'fetch' }>): void {
    this.#moves.end(move);
    for (const rblock of move.kind === 'out' ? move.rblocks : move.places.values()) this.#free(rblock);
    const away = this.#away.all.get(move.sequence);
    if (away === undefined) return;
    if (move.kind === 'out') away.out = undefined;
    else away.over.delete(move);
  }

  /** One that was lost is known no more. */
  #free(rblock: RBlockId): void {
    if (this.#away.holders.delete(rblock) && this.rmanager.find(rblock) !== undefined) this.rmanager.free(rblock);
  }

  #follow(effect: LendingEffect): void {
    switch (effect.kind) {
      case 'send':
        this.#push({ kind: 'lending', envelope: effect.envelope });
        break;
      case 'lost':
        this.#counts.lostBlocks += effect.rblocks.length;
        for (const rblock of effect.rblocks) this.#lose(rblock);
        break;
      case 'vacate':
        this.#vacate(effect.rblocks);
        break;
      case 'fetch':
        this.#fetch(effect.settlement, effect.rblocks);
        break;
      case 'placed':
        this.#counts.homeBlocks++;
        this.#away.of(effect.rblock)?.changed();
        break;
      case 'met':
        break;
    }
  }

  #lose(rblock: RBlockId): void {
    const away = this.#away.of(rblock);
    this.#away.holders.delete(rblock);
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
  #vacate(rblocks: readonly RBlockId[]): void {
    const moves = new Map<Sequence, { readonly places: Map<RBlockId, RBlockId>; readonly ways: [number, number][] }>();
    for (const rblock of new Set(rblocks.flatMap((asked) => this.#stopFilling(asked)))) {
      const sequence = this.#away.holders.get(rblock);
      const place = this.rmanager.find(rblock);
      const away = this.#away.of(rblock);
      if (sequence === undefined || away === undefined || place?.kind !== 'remote') continue;
      const to = away.broken ? undefined : (this.rmanager.takeHome('device') ?? this.rmanager.take());
      if (to === undefined) {
        away.broken = true;
        continue;
      }
      this.#away.holders.set(to, sequence);
      const target = this.rmanager.find(to);
      const { places, ways } = moves.get(sequence) ?? { places: new Map<RBlockId, RBlockId>(), ways: [] };
      places.set(rblock, to);
      ways.push([place.instance, target?.kind === 'remote' ? target.instance : this.#config.instance]);
      moves.set(sequence, { places, ways });
    }
    for (const [sequence, { places, ways }] of moves) {
      const move = { kind: 'over', sequence, places, pending: 0 } as const;
      this.#away.all.get(sequence)?.over.add(move);
      this.#moves.start(move, ways);
    }
  }

  /** Nothing goes to that place any more. Returns what has to leave its own: what was on its way there, else the block itself. */
  #stopFilling(rblock: RBlockId): readonly RBlockId[] {
    const away = this.#away.of(rblock);
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

  #fetch(settlement: SettlementId, rblocks: readonly RBlockId[]): void {
    const ways: [InstanceId, InstanceId][] = [];
    for (const rblock of rblocks) {
      const place = this.rmanager.find(rblock);
      if (place?.kind === 'remote') ways.push([place.instance, this.#config.instance]);
    }
    if (ways.length > 0) this.#moves.start({ kind: 'fetch', settlement, pending: 0 }, ways);
  }

  /** Throws unless every rBlock is held once, and every sequence has all of its blocks somewhere. */
  check(): void {
    this.rmanager.check();
    this.#away.check(this.rmanager.table);
  }
}

const nothing = { rows: 0, decodeRows: 0 };
const ours: ReadonlySet<string> = new Set(['lending', 'moved', 'guestLoad', 'wake']);

function isOurs(event: BorrowerEvent | { readonly kind: string }): event is BorrowerEvent {
  return ours.has(event.kind);
}

function sum(totals: readonly { readonly blocks: number }[]): number {
  return totals.reduce((all, { blocks }) => all + blocks, 0);
}
