// Continuous batching: who waits, who runs, and what rows each step computes.
import type { BlockCache } from '../blocks/block-cache.ts';
import type { StepPredictor, StepShape } from '../cost/step-shape.ts';
import { type BackgroundLimits, backgroundLimits, backgroundPages, firstBackground } from './background.ts';
import { checkBatch } from './check-batch.ts';
import { Claims } from './claims.ts';
import { FairShares } from './fair-shares.ts';
import { KnownPrefixes, lookAhead } from './known-prefixes.ts';
import type { Overflow } from './overflow.ts';
import { RankedList } from './ranked-list.ts';
import { Room } from './room.ts';
import { outranks, type Sequence } from './sequence.ts';
import { type BatchLimits, StepBudget } from './step-budget.ts';
import { WaitingList } from './waiting-list.ts';

/** Part of a chunk kept for short prompts of the same priority behind a long one. */
const shortShare = 1 / 4;

/**
 * Plans steps: decode rows first, then prefill chunks in order of rank, within a budget of rows and predicted time; batch jobs get what is left.
 * When blocks run out the lowest rank is preempted and later recomputed; the first in rank always gets on, so there is no livelock.
 * A waiting prompt whose next block is being computed by one that outranks it waits for that block.
 * Nothing is committed until `commit`: a step that was aborted is simply planned again.
 */
export class Batcher {
  readonly #cache: BlockCache;
  readonly #blockTokens: number;
  readonly room: Room;
  readonly #background: BackgroundLimits;
  readonly #budget: StepBudget;
  readonly #shares: FairShares | undefined;
  readonly #waiting: WaitingList;
  readonly #running = new RankedList();
  readonly #parked = new Set<Sequence>();
  readonly #claims: Claims;
  readonly #prefixes: KnownPrefixes;
  readonly #overflow: Overflow | undefined;
  readonly #admitted: Sequence[] = [];
  readonly #planned: Sequence[] = [];
  readonly #prefills: Sequence[] = [];
  #admitting = true;
  /** Somebody made way in this plan, so that it let nobody in: the next one may. */
  #crowded = false;
  #wholeOnly = false;
  /** A batch job waits for memory that is left to batch jobs. */
  #backgroundWaits = false;
  #preemptions = 0;

  /** @param overflow where blocks go when the cache runs full; undefined: nowhere */
  constructor(cache: BlockCache, limits: BatchLimits, cost: StepPredictor, overflow?: Overflow) {
    this.#cache = cache;
    this.#overflow = overflow;
    this.#shares = limits.byArrival === true ? undefined : new FairShares();
    this.#waiting = new WaitingList(this.#shares);
    this.#blockTokens = cache.blockTokens;
    this.room = new Room(cache, limits, overflow);
    this.#background = limits.background ?? backgroundLimits;
    this.#budget = new StepBudget(limits, cost, cache.blockTokens);
    this.#claims = new Claims(limits.sequencesMax, cache.blockTokens);
    this.#prefixes = new KnownPrefixes(cache, this.#claims);
  }

  get waiting(): readonly Sequence[] {
    return this.#waiting.items;
  }

  get running(): readonly Sequence[] {
    return this.#running.items;
  }

  /** The first in rank of the prompts that run, or wait and are not loading, batch jobs aside. */
  get firstPrefill(): Sequence | undefined {
    const running = this.#running.items.find(({ remaining, background }) => remaining > 1 && !background);
    const waiting = this.#waiting.items.find(({ loading, background }) => !loading && !background);
    if (running === undefined || waiting === undefined) return running ?? waiting;
    return outranks(running, waiting) ? running : waiting;
  }

  /** Those that keep their blocks and compute nothing more. */
  get parked(): ReadonlySet<Sequence> {
    return this.#parked;
  }

  get preemptions(): number {
    return this.#preemptions;
  }

  /** Sequences that the last plan let start (or start again), until the next plan. */
  get admitted(): readonly Sequence[] {
    return this.#admitted;
  }

  /** Shape of the last plan, until the next. */
  get shape(): StepShape {
    return this.#budget.shape;
  }

  /** Would the running sequences still get what they need, with so many pages fewer? */
  spares(pages: number): boolean {
    return this.room.spares(pages, this.#running.items);
  }

  add(sequence: Sequence): void {
    if (sequence.state !== 'new') throw new Error(`Cannot add a sequence: it is ${sequence.state}`);
    sequence.state = 'waiting';
    this.#waiting.insert(sequence);
  }

  /** Takes the sequence out and its blocks back; with `forget` they leave the cache as well. Not while a step that holds it is in flight. */
  remove(sequence: Sequence, forget = false): void {
    if (sequence.state === 'waiting') this.#waiting.remove(sequence);
    if (sequence.state === 'running') this.#stop(sequence, forget);
    if (this.#parked.delete(sequence)) this.#giveBack(sequence, forget);
    sequence.state = 'ended';
  }

  /** A running sequence that is computed keeps its blocks until it is removed, and its place goes to others. */
  park(sequence: Sequence): void {
    if (sequence.state !== 'running') throw new Error(`Cannot park a sequence: it is ${sequence.state}`);
    this.#claims.close(sequence);
    this.#running.remove(sequence);
    sequence.state = 'parked';
    this.#parked.add(sequence);
  }

  /** Parks a sequence whose rows somebody else plans, with blocks for `tokens` tokens; false when the running ones cannot spare them. */
  hold(sequence: Sequence, tokens: number): boolean {
    const held = this.room.hold(sequence, tokens, this.#running.items);
    if (held) this.#parked.add(sequence);
    return held;
  }

  /** Sequences with `planned` rows, in order of rank; empty when nothing can run. Valid until the next call. @param awaited somebody else's work waits for the step to end */
  plan(awaited = false): readonly Sequence[] {
    this.#budget.reset();
    while (this.#admitted.length > 0) this.#admitted.pop();
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

  /** The sequence's planned rows are computed: full blocks become shareable, and those behind a window are given back. */
  commit(sequence: Sequence): void {
    const from = Math.floor(sequence.computed / this.#blockTokens);
    sequence.computed += sequence.planned;
    sequence.planned = 0;
    if (Math.floor(sequence.computed / this.#blockTokens) > from) {
      sequence.content.digest(sequence.computed);
      const to = Math.min(Math.floor(sequence.computed / this.#blockTokens), sequence.chain.blocks);
      if (sequence.sharedBlocks === undefined)
        sequence.swapped(this.#cache.commit(sequence.chain, from, to, sequence.table) * this.#blockTokens);
      this.#claims.advance(sequence, to);
    }
    this.#cache.leaveBehind(sequence.table, sequence.computed);
  }

  /** Pages that those who run still need for their known tokens, and the first of those who wait and are not let in for want of room. */
  get pagesAhead(): number {
    const next = this.#admitting ? undefined : this.#firstAdmitted;
    return this.room.pagesAhead(this.#running.items, next && this.room.isOverlong(next) ? undefined : next);
  }

  get #firstAdmitted(): Sequence | undefined {
    const { items } = this.#waiting;
    return this.#overflow === undefined ? items[0] : items.find((sequence) => this.#overflow?.admits(sequence));
  }

  /** The sequence's blocks are to move away: from the block returned on they are its own, and what it still computes is shared with nobody. */
  disown(sequence: Sequence): number {
    return this.#prefixes.disown(sequence);
  }

  /** What it had elsewhere is gone: back to the queue. Not while a step that holds it is in flight. */
  recompute(sequence: Sequence): void {
    if (sequence.state === 'running') this.#preempt(sequence);
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
      this.#makeRoom(sequence, sequence.length);
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
      } else if (this.#admit(waiting)) {
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
      const fits = held === 0 || held + this.room.pagesNeeded(sequence) <= pagesMax;
      this.#backgroundWaits = !(this.#admitting && fits && this.#admit(sequence));
      if (this.#backgroundWaits) return;
      this.#planJob(sequence);
    }
  }

  #planJob(sequence: Sequence): void {
    const rows = this.#budget.backgroundRowsFor(sequence);
    if (rows === 0) return;
    this.#makeRoom(sequence, sequence.computed + rows);
    this.#take(sequence, Math.min(rows, sequence.table.length * this.#blockTokens - sequence.computed));
  }

  /** Plans as much of the sequence's prefill as fits; once one did not fit whole, only those follow that do. */
  #planChunk(sequence: Sequence, nextRunning: number, nextWaiting: number): void {
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
    this.#makeRoom(sequence, sequence.computed + rows);
    this.#take(sequence, Math.min(rows, sequence.table.length * this.#blockTokens - sequence.computed));
  }

  #take(sequence: Sequence, rows: number): void {
    sequence.planned = rows;
    if (rows > 0) this.#budget.take(sequence);
  }

  /** Moves a waiting sequence to the running ones with the blocks that the cache has for it; false when there is no place. */
  #admit(sequence: Sequence): boolean {
    while (!this.room.hasPlace(sequence, this.#running.items, this.#parked.size)) {
      const victim = this.#running.last;
      if (
        victim === undefined ||
        victim.priority >= sequence.priority ||
        !this.room.wouldFit(sequence, this.#running.items)
      )
        return false;
      this.#preempt(victim);
    }
    this.#waiting.remove(sequence);
    sequence.state = 'running';
    const { chain, table, known } = sequence;
    const reusable = sequence.reusableBlocks(this.#blockTokens);
    const again = sequence.cachedTokens !== undefined;
    sequence.computed = this.#cache.take(chain, reusable, table, { known, again }) * this.#blockTokens;
    sequence.cachedTokens ??= sequence.computed;
    if (sequence.landed > sequence.computed) this.#load(sequence);
    this.#shares?.start(sequence, Math.max(0, sequence.promptLength - sequence.computed));
    this.#running.insert(sequence);
    this.#claims.open(sequence);
    this.#admitted.push(sequence);
    return true;
  }

  /** There was room for all its tokens when it was let in. */
  #load(sequence: Sequence): void {
    const { chain, table, landed } = sequence;
    if (!this.#cache.adopt(table, landed, sequence.landedPages)) return;
    sequence.computed = landed;
    sequence.content.digest(landed);
    this.#cache.commit(chain, 0, Math.min(Math.floor(landed / this.#blockTokens), chain.blocks), table);
  }

  /** Gives the sequence blocks for its first `tokens` tokens, at the expense of the lowest ranks; stops short when it is the lowest itself. */
  #makeRoom(sequence: Sequence, tokens: number): void {
    while (this.#cache.missing(sequence.table, tokens) > 0) {
      if (this.#cache.allocate(sequence.table)) continue;
      const relief = this.#overflow?.relieve(sequence);
      const victim = this.#running.last;
      // Whoever is let in now would be the next victim.
      if (relief !== undefined || victim !== sequence) this.#crowded = true;
      if (this.#crowded) this.#admitting = false;
      if (relief === 'coming' || victim === undefined || victim === sequence) return;
      this.#preempt(victim);
    }
  }

  /** Back to the queue, at its old rank, to be recomputed from its tokens and from what is still cached. */
  #preempt(victim: Sequence): void {
    this.#stop(victim, false);
    victim.state = 'waiting';
    this.#waiting.insert(victim);
    this.#preemptions++;
  }

  #stop(sequence: Sequence, forget: boolean): void {
    this.#claims.close(sequence);
    this.#running.remove(sequence);
    this.#shares?.charge(sequence);
    this.#giveBack(sequence, forget);
  }

  #giveBack(sequence: Sequence, forget: boolean): void {
    this.#overflow?.release(sequence);
    this.#cache.release(sequence.table, sequence.background);
    sequence.unshare();
    if (forget) this.#cache.forget(sequence.chain, Math.floor(sequence.computed / this.#blockTokens));
    sequence.empty();
  }

  /** Throws unless every block reference belongs to a running or parked sequence and every claim and list is in order. */
  check(): void {
    const { running, parked } = this;
    checkBatch({ cache: this.#cache, claims: this.#claims, running, waiting: this.#waiting.ranked, parked });
  }
}
