// Plans the rows that each step computes.

import type { KvCaches } from '../../kvcache/kv-caches.ts';
import type { StepPredictor, StepShape } from '../../protocol/step-shape.ts';
import type { FreeCapacity } from './free-capacity.ts';
import type { OverflowMemory } from './overflow-memory.ts';
import { firstBackground, type RankedList } from './ranked-list.ts';
import { lookAhead, type ReusablePrefixes } from './reusable-prefixes.ts';
import type { Sequence } from './sequence.ts';
import { steadySparseSteps } from './sparse-rows.ts';
import { type BackgroundLimits, type BatchLimits, backgroundLimits, StepBudget } from './step-budget.ts';
import type { WaitingList } from './waiting-list.ts';

/** Share of a chunk that is reserved for short prompts of the same priority behind a long one. */
const shortShare = 1 / 4;

interface RowPlannerContext {
  readonly caches: KvCaches;
  readonly limits: BatchLimits;
  readonly cost: StepPredictor;
  readonly overflow: OverflowMemory | undefined;
  readonly capacity: FreeCapacity;
  readonly prefixes: ReusablePrefixes;
  readonly running: RankedList;
  readonly waiting: WaitingList;
}

/** Admits sequences and allocates their blocks. */
interface BlockAllocator {
  /** Starts a waiting sequence with its cached blocks; false when it does not fit. */
  admit(sequence: Sequence): boolean;
  /** Allocates blocks for the sequence's first `tokens` tokens, or as many as possible. */
  allocate(sequence: Sequence, tokens: number): void;
  /** Loads the received KV as far as pages are free; false when some is left. */
  load(sequence: Sequence): boolean;
}

/**
 * Plans decode rows first, then prefill chunks in order of rank, within a budget of rows and predicted time. Batch jobs
 * get the rest.
 */
export class RowPlanner {
  readonly #caches: KvCaches;
  readonly #blockTokens: number;
  readonly #background: BackgroundLimits;
  readonly #budget: StepBudget;
  readonly #overflow: OverflowMemory | undefined;
  readonly #capacity: FreeCapacity;
  readonly #prefixes: ReusablePrefixes;
  readonly #running: RankedList;
  readonly #waiting: WaitingList;
  readonly #allocator: BlockAllocator;
  readonly #planned: Sequence[] = [];
  readonly #prefills: Sequence[] = [];
  #admitting = true;
  /** A sequence was preempted or offloaded in this plan, so it admitted none; the next plan may. */
  #preempted = false;
  /** From here on only prefills that fit as a whole are planned. */
  #wholeOnly = false;
  /** A batch job waits for memory of the batch jobs' share. */
  #backgroundWaits = false;

  constructor(
    { caches, limits, cost, overflow, capacity, prefixes, running, waiting }: RowPlannerContext,
    allocator: BlockAllocator,
  ) {
    this.#caches = caches;
    this.#blockTokens = caches.first.blockTokens;
    this.#background = limits.background ?? backgroundLimits;
    this.#budget = new StepBudget(limits, cost, this.#blockTokens);
    this.#overflow = overflow;
    this.#capacity = capacity;
    this.#prefixes = prefixes;
    this.#running = running;
    this.#waiting = waiting;
    this.#allocator = allocator;
  }

  /** Shape of the last plan, until the next. */
  get shape(): StepShape {
    return this.#budget.shape;
  }

  /**
   * Sequences with `planned` rows, in order of rank; empty when nothing can run. Valid until the next call.
   * @param keepsShort work of other components waits for the end of the step
   */
  plan(keepsShort = false): readonly Sequence[] {
    this.#budget.reset();
    this.#admitting = true;
    this.#preempted = false;
    this.#wholeOnly = false;
    // Loops by index: a simulation spends its first second in code that is not optimized yet, where iterators are slow.
    const running = this.#running.items;
    for (let i = 0; i < running.length; i++) running[i].planned = 0;
    this.#waiting.arrange(running, this.#caches.nowUs);
    this.#planDecode();
    this.#budget.endDecode({ keepsShort, alone: this.#isAlone });
    this.#planPrefill();
    if (this.#running.last?.background === true || this.#waiting.last?.background === true) this.#planBackground();
    let planned = 0;
    for (let i = 0; i < running.length; i++) if (running[i].planned > 0) this.#planned[planned++] = running[i];
    // One by one: setting the length frees memory that the next plan requires again.
    while (this.#planned.length > planned) this.#planned.pop();
    return this.#planned;
  }

  /** The first waiting sequence, if the last plan did not admit it because memory was short. */
  get blockedByMemory(): Sequence | undefined {
    return this.#admitting ? undefined : this.#firstAdmissible;
  }

  /** Memory was short in this plan: a sequence admitted now would be preempted next. */
  memoryShort(): void {
    this.#preempted = true;
    this.#admitting = false;
  }

  /** The sequence is preempted: removes its rows from this plan. */
  unplan(sequence: Sequence): void {
    if (sequence.planned > 0) this.#budget.untake(sequence);
  }

  get #firstAdmissible(): Sequence | undefined {
    const { items } = this.#waiting;
    return this.#overflow === undefined ? items[0] : items.find((sequence) => this.#overflow?.admits(sequence));
  }

  /**
   * How many steps can repeat the rows of the last plan before a sequence requires a block: 1 when any row is prefill
   * or a waiting sequence could be admitted. A sequence that waits for memory gets none before then.
   */
  steadySteps(): number {
    const { rows, decodeRows } = this.#budget.shape;
    if (rows === 0 || rows !== decodeRows || this.#mayAdmit || this.#waiting.isContested) return 1;
    let steps = this.#running.last?.background === true ? this.#steadyBackground() : Number.MAX_SAFE_INTEGER;
    const running = this.#running.items;
    for (let i = 0; i < running.length; i++) {
      const sequence = running[i];
      const { planned, computed, remaining, table } = sequence;
      if (planned !== 1 || remaining !== 1) return 1;
      steps = Math.min(steps, table.length * this.#blockTokens - computed, steadySparseSteps(sequence));
    }
    return steps;
  }

  /**
   * True while at most one online request runs or waits, and fits this instance. Blocks of a longer one move to other
   * instances between steps.
   */
  get #isAlone(): boolean {
    const [running, waiting] = [this.#running.items, this.#waiting.items];
    const first = running[0] ?? waiting[0];
    return (
      firstBackground(running) + firstBackground(waiting) <= 1 &&
      (first === undefined || !this.#capacity.exceedsPages(first))
    );
  }

  /** True if a sequence waits for another reason than memory. */
  get #mayAdmit(): boolean {
    const first = this.#firstAdmissible;
    if (first === undefined || this.#preempted) return first !== undefined;
    return this.#admitting && !(first.background && this.#backgroundWaits);
  }

  /** For a step of decoding batch jobs alone: how many steps stay within their time. */
  #steadyBackground(): number {
    return this.#running.items[0]?.background === true ? this.#budget.steadyBackground() : 1;
  }

  #planDecode(): void {
    const running = this.#running.items;
    // Preemption only shortens the list behind `i`.
    for (let i = 0; i < running.length; i++) {
      const sequence = running[i];
      if (sequence.remaining !== 1 || sequence.background) continue;
      this.#allocator.allocate(sequence, sequence.length);
      if (this.#caches.first.blocksMissing(sequence.table, sequence.length) === 0) this.#planRows(sequence, 1);
    }
  }

  /** Merges the running prefills with the waiting ones by rank, and plans a chunk of each while the budget lasts. */
  #planPrefill(): void {
    const prefills = this.#prefills;
    let count = 0;
    const sequences = this.#running.items;
    for (let i = 0; i < sequences.length; i++) {
      const sequence = sequences[i];
      if (sequence.remaining > 1 && !sequence.background) prefills[count++] = sequence;
    }
    while (prefills.length > count) prefills.pop();
    let nextRunning = 0;
    let nextWaiting = 0;
    let skipped = 0;
    while (this.#budget.rows > 0 && skipped <= lookAhead) {
      const running = prefills[nextRunning];
      const waiting = this.#admitting ? this.#nextWaiting(nextWaiting) : undefined;
      if (running !== undefined && (waiting === undefined || this.#waiting.runsBefore(running, waiting))) {
        nextRunning++;
        if (running.state === 'running') this.#planChunk(running, nextRunning, nextWaiting);
      } else if (waiting === undefined) {
        return;
      } else if (this.#prefixes.mustWait(waiting) || this.#overflow?.admits(waiting) === false) {
        nextWaiting++;
      } else if (this.#wholeOnly && this.#prefixes.remainingTokens(waiting) > this.#budget.rowsFor(waiting, false)) {
        nextWaiting++;
        skipped++;
      } else if (this.#allocator.admit(waiting)) {
        this.#planChunk(waiting, nextRunning, nextWaiting);
      } else {
        this.#admitting = false;
      }
    }
  }

  /** Undefined at the first batch job: batch jobs are last. */
  #nextWaiting(index: number): Sequence | undefined {
    const sequence = this.#waiting.items[index];
    return sequence?.background === true ? undefined : sequence;
  }

  /**
   * Plans batch jobs in order of rank, running ones first: one row or one chunk each, within the time, rows and memory
   * that are left.
   */
  #planBackground(): void {
    this.#budget.beginBackground(this.#background);
    this.#backgroundWaits = false;
    const running = this.#running.items;
    const pagesMax = Math.floor(this.#caches.pages.total * this.#background.memoryShare);
    // Preemption only shortens the list behind `i`.
    for (let i = firstBackground(running); i < running.length; i++) this.#planJob(running[i]);
    for (let i = firstBackground(this.#waiting.items); i < this.#waiting.length && this.#budget.hasTime; ) {
      const sequence = this.#waiting.items[i];
      if (this.#prefixes.mustWait(sequence) || this.#overflow?.admits(sequence) === false) {
        i++;
        continue;
      }
      const usedPages = backgroundPages(this.#caches, running);
      const fits = usedPages === 0 || usedPages + this.#capacity.pagesRequired(sequence) <= pagesMax;
      this.#backgroundWaits = !(this.#admitting && fits && this.#allocator.admit(sequence));
      if (this.#backgroundWaits) return;
      this.#planJob(sequence);
    }
  }

  #planJob(sequence: Sequence): void {
    if (sequence.loadPending && !this.#allocator.load(sequence)) return;
    this.#allocateRows(sequence, this.#budget.backgroundRowsFor(sequence));
  }

  /**
   * Plans as much of the sequence's prefill as fits. After the first one that does not fit whole, only those that do
   * are planned.
   */
  #planChunk(sequence: Sequence, nextRunning: number, nextWaiting: number): void {
    if (sequence.loadPending && !this.#allocator.load(sequence)) return;
    const first = this.#budget.shape.rows === this.#budget.shape.decodeRows;
    let rows = this.#budget.rowsFor(sequence, first);
    // Prompt scoring is short of rows with logits, not of rows that others could use.
    const scorable = this.#budget.scorableRows(sequence);
    if (rows < sequence.plannable) {
      if (this.#wholeOnly) return;
      this.#wholeOnly = true;
      const kept = Math.floor(rows * shortShare);
      const waiting = this.#admitting ? this.#waiting.items : [];
      if (this.#prefixes.hasShortBehind(sequence, kept, this.#prefills, nextRunning, waiting, nextWaiting))
        rows -= kept;
      const end = sequence.computed + rows;
      const aligned = end - (end % this.#blockTokens);
      if (aligned > sequence.computed) rows = aligned - sequence.computed;
      else if (!first) return;
    }
    this.#allocateRows(sequence, Math.min(rows, scorable));
  }

  /** Plans at most `rows` rows: as many as there is memory for. */
  #allocateRows(sequence: Sequence, rows: number): void {
    const whole = sequence.rowsWithin(rows);
    if (whole === 0) return;
    this.#allocator.allocate(sequence, sequence.computed + whole);
    const held = sequence.table.length * this.#blockTokens - sequence.computed;
    this.#planRows(sequence, sequence.rowsWithin(Math.min(whole, held)));
  }

  #planRows(sequence: Sequence, rows: number): void {
    sequence.planned = rows;
    if (rows > 0) this.#budget.take(sequence);
  }
}

/** Pages that batch jobs hold; shared pages count twice. */
export function backgroundPages({ first: cache }: KvCaches, running: readonly Sequence[]): number {
  let pages = 0;
  for (let i = firstBackground(running); i < running.length; i++) pages += cache.pagesOf(running[i].table);
  return pages;
}
