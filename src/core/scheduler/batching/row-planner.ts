// What rows each step computes.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { StepPredictor, StepShape } from '../../protocol/step-shape.ts';
import { type BackgroundLimits, backgroundLimits, backgroundPages, firstBackground } from './batch-jobs-budget.ts';
import type { FreeCapacity } from './free-capacity.ts';
import { type KnownPrefixes, lookAhead } from './known-prefixes.ts';
import type { OverflowMemory } from './overflow-memory.ts';
import type { RankedList } from './ranked-list.ts';
import type { Sequence } from './sequence.ts';
import { type BatchLimits, StepBudget } from './step-budget.ts';
import type { WaitingList } from './waiting-list.ts';

/** Part of a chunk kept for short prompts of the same priority behind a long one. */
const shortShare = 1 / 4;

interface Parts {
  readonly cache: BlockCache;
  readonly limits: BatchLimits;
  readonly cost: StepPredictor;
  readonly overflow: OverflowMemory | undefined;
  readonly room: FreeCapacity;
  readonly prefixes: KnownPrefixes;
  readonly running: RankedList;
  readonly waiting: WaitingList;
}

/** Who gives out the blocks. */
interface Seats {
  /** Lets one who waits run with the blocks that the cache has for it; false when there is no place. */
  admit(sequence: Sequence): boolean;
  /** Gives the sequence blocks for its first `tokens` tokens, or as many as it can. */
  makeRoom(sequence: Sequence, tokens: number): void;
  /** Takes in what has landed, as far as there is room; false when some is left. */
  load(sequence: Sequence): boolean;
}

/** Decode rows first, then prefill chunks in order of rank, within a budget of rows and predicted time; batch jobs get what is left. */
export class RowPlanner {
  readonly #cache: BlockCache;
  readonly #blockTokens: number;
  readonly #background: BackgroundLimits;
  readonly #budget: StepBudget;
  readonly #overflow: OverflowMemory | undefined;
  readonly #room: FreeCapacity;
  readonly #prefixes: KnownPrefixes;
  readonly #running: RankedList;
  readonly #waiting: WaitingList;
  readonly #seats: Seats;
  readonly #planned: Sequence[] = [];
  readonly #prefills: Sequence[] = [];
  #admitting = true;
  /** Somebody made way in this plan, so that it let nobody in: the next one may. */
  #crowded = false;
  #wholeOnly = false;
  /** A batch job waits for memory that is left to batch jobs. */
  #backgroundWaits = false;

  constructor({ cache, limits, cost, overflow, room, prefixes, running, waiting }: Parts, seats: Seats) {
    this.#cache = cache;
    this.#blockTokens = cache.blockTokens;
    this.#background = limits.background ?? backgroundLimits;
    this.#budget = new StepBudget(limits, cost, cache.blockTokens);
    this.#overflow = overflow;
    this.#room = room;
    this.#prefixes = prefixes;
    this.#running = running;
    this.#waiting = waiting;
    this.#seats = seats;
  }

  /** Shape of the last plan, until the next. */
  get shape(): StepShape {
    return this.#budget.shape;
  }

  /** Sequences with `planned` rows, in order of rank; empty when nothing can run. Valid until the next call. @param awaited somebody else's work waits for the step to end */
  plan(awaited = false): readonly Sequence[] {
    this.#budget.reset();
    this.#admitting = true;
    this.#crowded = false;
    this.#wholeOnly = false;
    for (const sequence of this.#running.items) sequence.planned = 0;
    this.#waiting.arrange(this.#running.items);
    this.#planDecode();
    this.#budget.endDecode(awaited);
    this.#planPrefill();
    if (this.#running.last?.background === true || this.#waiting.last?.background === true) this.#planBackground();
    let planned = 0;
    for (const sequence of this.#running.items) if (sequence.planned > 0) this.#planned[planned++] = sequence;
    // One by one: setting a length gives memory back that the next plan wants again.
    while (this.#planned.length > planned) this.#planned.pop();
    return this.#planned;
  }

  /** The first of those who wait, where the last plan turned somebody away for want of room. */
  get turnedAway(): Sequence | undefined {
    return this.#admitting ? undefined : this.#firstAdmitted;
  }

  /** Somebody made way: whoever is let in now would be the next to. */
  crowd(): void {
    this.#crowded = true;
    this.#admitting = false;
  }

  /** It makes way: its rows, where it has some in this plan, are nobody's. */
  drop(sequence: Sequence): void {
    if (sequence.planned > 0) this.#budget.giveBack(sequence);
  }

  get #firstAdmitted(): Sequence | undefined {
    const { items } = this.#waiting;
    return this.#overflow === undefined ? items[0] : items.find((sequence) => this.#overflow?.admits(sequence));
  }

  /**
   * How many steps could follow one another with the rows of the last plan, before a sequence needs a block: 1 when any row is prefill or
   * somebody who waits could be let in. Whoever waits for room gets none before then.
   */
  steadySteps(): number {
    const { rows, decodeRows } = this.#budget.shape;
    if (rows === 0 || rows !== decodeRows || this.#mayAdmit || this.#waiting.contested) return 1;
    let steps = this.#running.last?.background === true ? this.#steadyBackground() : Number.MAX_SAFE_INTEGER;
    for (const { planned, computed, remaining, table } of this.#running.items) {
      if (planned !== 1 || remaining !== 1) return 1;
      steps = Math.min(steps, table.length * this.#blockTokens - computed);
    }
    return steps;
  }

  /** Is there one who waits and was not turned away for want of room? */
  get #mayAdmit(): boolean {
    const first = this.#firstAdmitted;
    if (first === undefined || this.#crowded) return first !== undefined;
    return this.#admitting && !(first.background && this.#backgroundWaits);
  }

  /** Of batch jobs that decode alone: as long as all of them keep the time. */
  #steadyBackground(): number {
    return this.#running.items[0]?.background === true ? this.#budget.steadyBackground() : 1;
  }

  #planDecode(): void {
    const running = this.#running.items;
    // Preemption only shortens the list behind `i`.
    for (let i = 0; i < running.length; i++) {
      const sequence = running[i];
      if (sequence.remaining !== 1 || sequence.background) continue;
      this.#seats.makeRoom(sequence, sequence.length);
      if (this.#cache.missing(sequence.table, sequence.length) === 0) this.#take(sequence, 1);
    }
  }

  /** Merges the running prefills with the waiting ones by rank and gives each a chunk while the budget lasts. */
  #planPrefill(): void {
    const prefills = this.#prefills;
    let count = 0;
    for (const sequence of this.#running.items) {
      if (sequence.remaining > 1 && !sequence.background) prefills[count++] = sequence;
    }
    while (prefills.length > count) prefills.pop();
    let nextRunning = 0;
    let nextWaiting = 0;
    let skipped = 0;
    while (this.#budget.rows > 0 && skipped <= lookAhead) {
      const running = prefills[nextRunning];
      const waiting = this.#admitting ? this.#nextWaiting(nextWaiting) : undefined;
      if (running !== undefined && (waiting === undefined || this.#waiting.isBehind(running, waiting))) {
        nextRunning++;
        if (running.state === 'running') this.#planChunk(running, nextRunning, nextWaiting);
      } else if (waiting === undefined) {
        return;
      } else if (this.#prefixes.isAwaited(waiting) || this.#overflow?.admits(waiting) === false) {
        nextWaiting++;
      } else if (this.#wholeOnly && this.#prefixes.restOf(waiting) > this.#budget.rowsFor(waiting, false)) {
        nextWaiting++;
        skipped++;
      } else if (this.#seats.admit(waiting)) {
        this.#planChunk(waiting, nextRunning, nextWaiting);
      } else {
        this.#admitting = false;
      }
    }
  }

  /** Batch jobs stand last. */
  #nextWaiting(index: number): Sequence | undefined {
    const sequence = this.#waiting.items[index];
    return sequence?.background === true ? undefined : sequence;
  }

  /** Batch jobs in order of rank, those who run first: a row each, or a chunk, as far as time, rows and memory are left. */
  #planBackground(): void {
    this.#budget.beginBackground(this.#background);
    this.#backgroundWaits = false;
    const running = this.#running.items;
    const pagesMax = Math.floor(this.#cache.pages.total * this.#background.memoryShare);
    // Preemption only shortens the list behind `i`.
    for (let i = firstBackground(running); i < running.length; i++) this.#planJob(running[i]);
    for (let i = firstBackground(this.#waiting.items); i < this.#waiting.length && this.#budget.hasTime; ) {
      const sequence = this.#waiting.items[i];
      if (this.#prefixes.isAwaited(sequence) || this.#overflow?.admits(sequence) === false) {
        i++;
        continue;
      }
      const held = backgroundPages(this.#cache, running);
      const fits = held === 0 || held + this.#room.pagesNeeded(sequence) <= pagesMax;
      this.#backgroundWaits = !(this.#admitting && fits && this.#seats.admit(sequence));
      if (this.#backgroundWaits) return;
      this.#planJob(sequence);
    }
  }

  #planJob(sequence: Sequence): void {
    if (sequence.isLanding && !this.#seats.load(sequence)) return;
    const rows = this.#budget.backgroundRowsFor(sequence);
    if (rows === 0) return;
    this.#seats.makeRoom(sequence, sequence.computed + rows);
    this.#take(sequence, Math.min(rows, sequence.table.length * this.#blockTokens - sequence.computed));
  }

  /** Plans as much of the sequence's prefill as fits; once one did not fit whole, only those follow that do. */
  #planChunk(sequence: Sequence, nextRunning: number, nextWaiting: number): void {
    if (sequence.isLanding && !this.#seats.load(sequence)) return;
    const first = this.#budget.shape.rows === this.#budget.shape.decodeRows;
    let rows = this.#budget.rowsFor(sequence, first);
    // Prompt scoring is short of logits, not of the rows that others could use.
    const scorable = this.#budget.scorableRows(sequence);
    if (rows < sequence.remaining) {
      if (this.#wholeOnly) return;
      this.#wholeOnly = true;
      const kept = Math.floor(rows * shortShare);
      const waiting = this.#admitting ? this.#waiting.items : [];
      if (this.#prefixes.shortBehind(sequence, kept, this.#prefills, nextRunning, waiting, nextWaiting)) rows -= kept;
      const end = sequence.computed + rows;
      const aligned = end - (end % this.#blockTokens);
      if (aligned > sequence.computed) rows = aligned - sequence.computed;
      else if (!first) return;
    }
    rows = Math.min(rows, scorable);
    this.#seats.makeRoom(sequence, sequence.computed + rows);
    this.#take(sequence, Math.min(rows, sequence.table.length * this.#blockTokens - sequence.computed));
  }

  #take(sequence: Sequence, rows: number): void {
    sequence.planned = rows;
    if (rows > 0) this.#budget.take(sequence);
  }
}
