// Continuous batching: decides which sequences wait, which run, and with which blocks.

import type { KvCaches } from '../../kvcache/kv-caches.ts';
import type { StepPredictor, StepShape } from '../../protocol/step-shape.ts';
import { BlockClaims } from './block-claims.ts';
import { checkBatch } from './check-batch.ts';
import { FreeCapacity } from './free-capacity.ts';
import type { OverflowMemory } from './overflow-memory.ts';
import { RankedList } from './ranked-list.ts';
import { ReusablePrefixes } from './reusable-prefixes.ts';
import { RowPlanner } from './row-planner.ts';
import { outranks, type Sequence } from './sequence.ts';
import { placementOptions, receiveOptions, type SequencePlacement } from './sequence-placement.ts';
import type { BatchLimits } from './step-budget.ts';
import { WaitingList } from './waiting-list.ts';

/**
 * When pages run out, the sequence of the lowest rank is preempted and recomputed later. The first in rank always
 * progresses, so that there is no livelock. A waiting prompt waits for its next block while a sequence that outranks it
 * computes that block. Nothing changes before `commit`: an aborted step is planned again.
 */
export class Batcher {
  readonly #caches: KvCaches;
  readonly #placement: SequencePlacement | undefined;
  readonly #blockTokens: number;
  readonly capacity: FreeCapacity;
  readonly #planner: RowPlanner;
  readonly #waiting: WaitingList;
  readonly #running = new RankedList();
  readonly #parked = new Set<Sequence>();
  readonly #claims: BlockClaims;
  readonly #prefixes: ReusablePrefixes;
  readonly #overflow: OverflowMemory | undefined;
  readonly #admitted: Sequence[] = [];
  #preemptions = 0;

  /**
   * @param overflow memory that blocks move to when the cache is full; undefined: none
   * @param placement chooses one of several caches for a sequence
   */
  constructor(
    caches: KvCaches,
    limits: BatchLimits,
    cost: StepPredictor,
    overflow?: OverflowMemory,
    placement?: SequencePlacement,
  ) {
    this.#caches = caches;
    this.#placement = placement;
    this.#overflow = overflow;
    this.#blockTokens = caches.first.blockTokens;
    this.capacity = new FreeCapacity(caches, limits, overflow);
    this.#claims = new BlockClaims(limits.sequencesMax, this.#blockTokens);
    this.#prefixes = new ReusablePrefixes(caches, this.#claims);
    this.#waiting = new WaitingList(limits.order ?? 'tokens', this.#prefixes);
    const lists = { running: this.#running, waiting: this.#waiting };
    this.#planner = new RowPlanner(
      { ...lists, caches, limits, cost, overflow, capacity: this.capacity, prefixes: this.#prefixes },
      {
        admit: (sequence) => this.#admit(sequence),
        allocate: (sequence, tokens) => this.#allocate(sequence, tokens),
        load: (sequence) => this.#loadReceivedPart(sequence),
      },
    );
  }

  get waiting(): readonly Sequence[] {
    return this.#waiting.items;
  }

  get running(): readonly Sequence[] {
    return this.#running.items;
  }

  /** The prompt of the highest rank that runs, or waits and is not loading; no batch jobs. */
  get firstPrefill(): Sequence | undefined {
    const running = this.#running.items.find(({ remaining, background }) => remaining > 1 && !background);
    const waiting = this.#waiting.items.find(
      ({ loading, waitsForGrammar, background }) => !loading && !waitsForGrammar && !background,
    );
    if (running === undefined || waiting === undefined) return running ?? waiting;
    return outranks(running, waiting) ? running : waiting;
  }

  /** Sequences that keep their blocks and compute nothing more. */
  get parked(): ReadonlySet<Sequence> {
    return this.#parked;
  }

  get preemptions(): number {
    return this.#preemptions;
  }

  /** Sequences that the last plan started or resumed, until the next plan. */
  get admitted(): readonly Sequence[] {
    return this.#admitted;
  }

  /** Shape of the last plan, until the next. */
  get shape(): StepShape {
    return this.#planner.shape;
  }

  /** True if the running sequences still have enough pages with `pages` fewer. */
  canSpare(pages: number): boolean {
    return this.capacity.canSpare(pages, this.#running.items);
  }

  add(sequence: Sequence): void {
    if (sequence.state !== 'new') throw new Error(`Cannot add a sequence: it is ${sequence.state}`);
    sequence.state = 'waiting';
    sequence.queuedUs = this.#caches.nowUs;
    this.#waiting.insert(sequence);
  }

  /**
   * Removes the sequence and releases its blocks; with `invalidate` they leave the cache too. Not while a running step
   * contains it.
   */
  remove(sequence: Sequence, invalidate = false): void {
    if (sequence.state === 'waiting') this.#waiting.remove(sequence);
    const { state } = sequence;
    sequence.state = 'ended';
    if (state === 'running') this.#stop(sequence, invalidate);
    if (this.#parked.delete(sequence)) this.#releaseBlocks(sequence, invalidate);
  }

  /** A computed sequence keeps its blocks until it is removed, and its slot becomes free. */
  park(sequence: Sequence): void {
    if (sequence.state !== 'running') throw new Error(`Cannot park a sequence: it is ${sequence.state}`);
    this.#claims.close(sequence);
    this.#running.remove(sequence);
    sequence.state = 'parked';
    this.#parked.add(sequence);
  }

  /**
   * Parks a sequence, scheduled by another component, with blocks for `tokens` tokens; false when the running sequences
   * cannot spare them, or others reserve memory.
   */
  allocateParked(sequence: Sequence, tokens: number): boolean {
    const held = this.capacity.allocateParked(sequence, tokens, this.#running.items);
    if (held) this.#parked.add(sequence);
    return held;
  }

  /**
   * Sequences with `planned` rows, in order of rank; empty when nothing can run. Valid until the next call.
   * @param keepsShort work of other components waits for the end of the step
   */
  plan(keepsShort = false): readonly Sequence[] {
    while (this.#admitted.length > 0) this.#admitted.pop();
    return this.#planner.plan(keepsShort);
  }

  /**
   * How many steps can repeat the rows of the last plan before a sequence requires a block: 1 when any row is prefill
   * or a waiting sequence could be admitted. A sequence that waits for memory gets none before then.
   */
  steadySteps(): number {
    return this.#planner.steadySteps();
  }

  /**
   * The sequence's planned rows are computed: its full blocks become shareable, and blocks behind a window are
   * released. With a KV budget, the prompt's last row also releases the blocks of sparse layers: slots hold the kept
   * tokens. What is computed from then on differs from full KV, so that no other sequence may share it.
   */
  commit(sequence: Sequence): void {
    const { sparsity, readsPart, table } = sequence;
    const cache = this.#caches.of(sequence);
    if (readsPart) {
      table.slots?.grow(sequence.planned, sparsity?.compactEvery ?? 0);
      sequence.computed += sequence.planned;
      if (table.bounds !== undefined) table.bounds.bounded = Math.floor(sequence.computed / this.#blockTokens);
    } else this.#advance(sequence, sequence.computed + sequence.planned);
    sequence.planned = 0;
    if (sparsity !== undefined && !readsPart && sequence.isSelected)
      cache.useSlots(table, sequence.promptLength, sparsity.keepsFull ? undefined : sequence.chain);
    cache.releaseBehindWindow(table, sequence.computed);
  }

  /** The first `tokens` tokens of the sequence are computed. */
  #advance(sequence: Sequence, tokens: number): void {
    const from = Math.floor(sequence.computed / this.#blockTokens);
    sequence.computed = tokens;
    if (Math.floor(sequence.computed / this.#blockTokens) > from) {
      sequence.content.digest(sequence.computed);
      const to = Math.min(Math.floor(sequence.computed / this.#blockTokens), sequence.chain.blocks);
      if (sequence.sharedBlocks === undefined)
        sequence.pagesChanged(
          this.#caches.of(sequence).cacheBlocks(sequence.chain, from, to, sequence.table) * this.#blockTokens,
        );
      else this.#copyToLowerTiers(sequence, from, to);
      this.#claims.advance(sequence, to);
    }
  }

  /** Caches the computed blocks in lower tiers only: in device memory they may move to another instance. */
  #copyToLowerTiers({ chain, table }: Sequence, from: number, to: number): void {
    const { first, blocks } = table.groups[0];
    this.#caches.first.lower?.copyComputed(chain, from, to, (index) => blocks.at(index - first));
  }

  /** True if the last plan did not admit the first waiting sequence because memory was short. */
  get isBlockedByMemory(): boolean {
    return this.#planner.blockedByMemory !== undefined;
  }

  /**
   * Pages that running sequences still require for their known tokens, with those of the first waiting sequence that
   * lacks memory alone.
   */
  get pagesOutstanding(): number {
    const next = this.#planner.blockedByMemory;
    return this.capacity.pagesOutstanding(
      this.#running.items,
      next && this.capacity.isOverCapacity(next) ? undefined : next,
    );
  }

  /**
   * Stops sharing the sequence's blocks after its first `stay`, so that they can move: from `sharedBlocks` on, they and the
   * blocks that it still computes are private.
   */
  makePrivate(sequence: Sequence, stay: number): void {
    this.#prefixes.makePrivate(sequence, stay);
  }

  /** Its remote blocks are lost: the sequence returns to the waiting list. Not while a running step contains it. */
  recompute(sequence: Sequence): void {
    if (sequence.state === 'running') this.#preempt(sequence);
  }

  /** Moves a waiting sequence to the running ones with its cached blocks; false when it does not fit. */
  #admit(sequence: Sequence): boolean {
    if (!this.#place(sequence)) return false;
    while (!this.capacity.fits(sequence, this.#running.items, this.#parked.size)) {
      const victim = this.#lastBeside(sequence);
      if (
        victim === undefined ||
        victim.priority >= sequence.priority ||
        !this.capacity.fitsAfterPreemption(sequence, this.#running.items)
      )
        return false;
      this.#preempt(victim);
    }
    const isReceived = sequence.sparsity !== undefined && sequence.receivedTokens > 0;
    const prefix = isReceived ? 0 : this.#takePrefix(sequence);
    if (!this.#allocateBudgeted(sequence) || (isReceived && !this.#adoptKept(sequence))) return false;
    this.#waiting.remove(sequence);
    sequence.state = 'running';
    sequence.computed = prefix * this.#blockTokens;
    sequence.cachedTokens ??= sequence.computed;
    if (isReceived) sequence.computed = sequence.receivedTokens;
    if (sequence.loadPending && !this.capacity.isOverCapacity(sequence)) this.#loadReceived(sequence);
    this.#waiting.shares?.start(
      sequence,
      Math.max(0, sequence.promptLength - Math.max(sequence.computed, sequence.receivedTokens)),
    );
    this.#running.insert(sequence);
    this.#claims.open(sequence);
    if (sequence.sharedBlocks !== undefined) this.#claims.advance(sequence, sequence.claimedTo);
    this.#admitted.push(sequence);
    return true;
  }

  /** Allocates the slots or bounds of a KV budget. False, and no blocks are held, if the pages do not suffice. */
  #allocateBudgeted(sequence: Sequence): boolean {
    const { table, sparsity, pageChoice } = sequence;
    const cache = this.#caches.of(sequence);
    const allocated =
      (sparsity === undefined || cache.allocateSlots(table, sparsity.layout)) &&
      (pageChoice === undefined || cache.allocateBounds(table, pageChoice.layers));
    if (!allocated) cache.release(table);
    return allocated;
  }

  /** Loads the received kept tokens, and the blocks of full layers. False, and no blocks are held, if pages are short. */
  #adoptKept({ worker, table, chain, promptLength, receivedTokens, receivedPages }: Sequence): boolean {
    const cache = this.#caches.of({ worker });
    if (!cache.adoptKept(table, promptLength, receivedTokens, receivedPages)) return false;
    cache.cacheBlocks(chain, 0, Math.min(Math.floor(promptLength / this.#blockTokens), chain.blocks), table);
    return true;
  }

  /** The cache for a prompt to receive, one that `fits`; undefined when none can take it now. */
  placeReceived(fits: (worker: number) => boolean): number | undefined {
    if (this.#placement === undefined) return fits(0) ? 0 : undefined;
    return this.#placement(receiveOptions(this.#caches, this.#running.items, fits));
  }

  /** False while the attention worker of this cache is lost. */
  canStartAt(worker: number): boolean {
    const option = { worker, heldTokens: 0, cachedTokens: 0, fits: true };
    return this.#placement === undefined || this.#placement([option]) !== undefined;
  }

  /** The received pages of a waiting sequence are lost: it is computed from its tokens, in any cache. */
  loseReceived(sequence: Sequence): void {
    if (sequence.state === 'waiting') sequence.reset();
  }

  /** Chooses the cache of a waiting sequence, where there are several; false when it cannot start in any. */
  #place(sequence: Sequence): boolean {
    if (this.#placement === undefined) return true;
    const running = this.#running.items;
    const { receivedPages, worker: own } = sequence;
    const all = placementOptions(this.#caches, sequence, running, (worker) => {
      sequence.placeAt(worker);
      return this.capacity.fits(sequence, running, this.#parked.size);
    });
    // Received pages are in one cache.
    const options = receivedPages === undefined ? all : all.filter(({ worker }) => worker === own);
    const worker = this.#placement(options);
    sequence.placeAt(worker ?? 0);
    return worker !== undefined;
  }

  /** The running sequence of the lowest rank in the same cache. */
  #lastBeside(sequence: Sequence): Sequence | undefined {
    return this.capacity.besideOf(sequence, this.#running.items).at(-1);
  }

  /** Takes its cached, arriving or remote prefix. Returns the number of blocks that it does not compute. */
  #takePrefix(sequence: Sequence): number {
    const { arriving, chain, table, known } = sequence;
    arriving?.share(table);
    if (arriving !== undefined) return arriving.blocks;
    const remote = this.capacity.isOverCapacity(sequence) ? (this.#overflow?.takeRemotePrefix(sequence) ?? 0) : 0;
    if (remote > 0) return remote;
    const resumed = sequence.cachedTokens !== undefined;
    return this.#caches
      .of(sequence)
      .loadPrefix(chain, sequence.reusableBlocks(this.#blockTokens), table, { known, resumed });
  }

  /**
   * The prefix that the sequence started ahead of has arrived: its blocks from `from` on become shareable. Not while a
   * running step contains it.
   */
  arrived(sequence: Sequence, from: number): void {
    const { arriving, chain, table } = sequence;
    sequence.arriving = undefined;
    if (arriving !== undefined && sequence.state === 'running')
      sequence.pagesChanged(
        this.#caches.of(sequence).cacheBlocks(chain, from, arriving.blocks, table) * this.#blockTokens,
      );
  }

  /** Loads the received KV at once: all of its tokens fitted when it was admitted. */
  #loadReceived(sequence: Sequence): void {
    const { chain, table, receivedTokens } = sequence;
    const cache = this.#caches.of(sequence);
    if (!cache.adopt(table, receivedTokens, sequence.receivedPages)) return;
    sequence.computed = receivedTokens;
    sequence.content.digest(receivedTokens);
    cache.cacheBlocks(chain, 0, Math.min(Math.floor(receivedTokens / this.#blockTokens), chain.blocks), table);
  }

  /** Loads the received KV of a sequence over capacity while its earlier blocks move to creditors; false while some is left. */
  #loadReceivedPart(sequence: Sequence): boolean {
    const { table, receivedTokens, computed, receivedPages } = sequence;
    if (!this.capacity.isOverCapacity(sequence)) {
      // The sequence is recomputed from its tokens.
      sequence.receivedTokens = 0;
      return true;
    }
    const from = table.length;
    this.#allocate(sequence, receivedTokens);
    if (receivedPages !== undefined) this.#caches.of(sequence).takeReceived(table, from, receivedPages);
    this.#advance(sequence, Math.max(computed, Math.min(receivedTokens, table.length * this.#blockTokens)));
    return !sequence.loadPending;
  }

  /**
   * Allocates blocks for the sequence's first `tokens` tokens and preempts the lowest ranks for them. Stops when the
   * sequence has the lowest rank itself.
   */
  #allocate(sequence: Sequence, tokens: number): void {
    const cache = this.#caches.of(sequence);
    while (cache.blocksMissing(sequence.table, tokens) > 0) {
      if (cache.allocate(sequence.table)) continue;
      const relief = this.#overflow?.offload(sequence);
      const victim = this.#lastBeside(sequence);
      // A sequence admitted now would be preempted next.
      if (relief !== undefined || victim !== sequence) this.#planner.memoryShort();
      if (relief === 'pending' || victim === undefined || victim === sequence) return;
      this.#preempt(victim);
    }
  }

  /**
   * Returns the sequence to the waiting list at its old rank. It resumes from the blocks still cached, and recomputes
   * the rest.
   */
  #preempt(victim: Sequence): void {
    this.#planner.unplan(victim);
    this.#stop(victim, false);
    victim.state = 'waiting';
    this.#waiting.insert(victim);
    victim.preemptions++;
    this.#preemptions++;
  }

  #stop(sequence: Sequence, invalidate: boolean): void {
    this.#claims.close(sequence);
    this.#running.remove(sequence);
    this.#waiting.shares?.charge(sequence);
    this.#releaseBlocks(sequence, invalidate);
  }

  #releaseBlocks(sequence: Sequence, invalidate: boolean): void {
    if (!invalidate) this.#prefixes.makeShareable(sequence);
    this.#overflow?.release(sequence, sequence.state === 'ended' && !invalidate);
    const cache = this.#caches.of(sequence);
    cache.release(sequence.table, sequence.background);
    sequence.clearSharing();
    const { chain, computed } = sequence;
    if (invalidate) cache.invalidate(chain, Math.min(chain.blocks, Math.floor(computed / this.#blockTokens)));
    sequence.reset();
  }

  /** Throws unless every block reference belongs to a running or parked sequence, and claims and lists are in order. */
  check(): void {
    const { running, parked } = this;
    checkBatch({ caches: this.#caches, claims: this.#claims, running, waiting: this.#waiting.ranked, parked });
  }
}
