// The borrower of an instance: moves blocks of long sequences to borrowed memory, and frees them when they are lost or
// recalled.

import { assertNever } from '../../../util/assert-never.ts';
import type { BlockCache } from '../../kvcache/block-cache.ts';
import { LendingMemory } from '../../kvcache/lending-memory.ts';
import type { InstanceEvent } from '../../protocol/events.ts';
import type { InstanceIndex, LoanNumber, SettlementId } from '../../protocol/ids.ts';
import type { RemoteWork } from '../../protocol/lending-effects.ts';
import type { Envelope, LendingEffect, RManagerEvent } from '../../protocol/lending-messages.ts';
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import { firstReserving } from '../../scheduler/batching/free-capacity.ts';
import type { OffloadState, OverflowMemory, RemotePrefix } from '../../scheduler/batching/overflow-memory.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import {
  type Handled,
  type Identified,
  InstanceComponent,
  type InstanceContext,
  type StepDraft,
} from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { RemoteLayout } from '../../scheduler/executor/step-builder.ts';
import type { InFlight } from '../../scheduler/step-in-flight.ts';
import { LentPages } from '../creditor/lent-pages.ts';
import { RManager } from '../rmanager.ts';
import { AdmissionHold } from './admission-hold.ts';
import { BorrowLimit, slackBlocks } from './borrow-limit.ts';
import type { BorrowingConfig, BorrowingTotals } from './borrower-config.ts';
import { MemoryForecast } from './memory-forecast.ts';
import { RemoteBlockMover } from './remote-block-mover.ts';
import type { RemotePrefixMatch } from './remote-prefix-cache.ts';
import { remoteWork } from './remote-work.ts';
import { spill } from './spill.ts';
import { Stalls } from './stalls.ts';

/** Block tables of sequences change between two steps only. */
export class Borrower extends InstanceComponent<Identified, never> implements OverflowMemory {
  readonly reservesWhole = true;
  readonly rmanager: RManager;
  readonly stalls = new Stalls();
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #config: BorrowingConfig;
  readonly #cache: BlockCache;
  readonly #host: LendingMemory;
  readonly #blockMoves: RemoteBlockMover;
  readonly #lentPages: LentPages;
  readonly #forecast: MemoryForecast;
  readonly #admissionHold = new AdmissionHold();
  readonly #borrowLimit: BorrowLimit;

  constructor(context: InstanceContext<Identified, RunningRequest>, config: BorrowingConfig) {
    super();
    const { instance, times, stagingBlocks } = config;
    const { kvCache: cache } = context;
    const policy = { ...config.policy, unitBlocks: config.rangeBlocks };
    this.#context = context;
    this.#config = config;
    this.#borrowLimit = new BorrowLimit(config);
    this.#cache = cache;
    this.#lentPages = new LentPages(context, config.hostFirstPage !== undefined);
    const memories = { device: cache.lending, host: LendingMemory.alone(config.hostBlocks ?? 0, cache.blockPages) };
    this.#host = memories.host;
    // The gManager and creditors count incarnations from 1.
    const incarnation = (context.config.incarnation ?? 0) + 1;
    this.rmanager = new RManager({ instance, incarnation, memories, policy, times, stagingBlocks });
    const { rmanager } = this;
    const fetched = (settlement: SettlementId, all: boolean) =>
      this.#applyToRManager({ kind: all ? 'fetched' : 'fetchFailed', settlement });
    this.#blockMoves = new RemoteBlockMover(
      { instance, rangeBlocks: config.rangeBlocks, cache, rmanager, fetched, remoteCacheUs: times.remoteCacheUs },
      {
        start: (part) => context.emit({ kind: 'moveBlocks', ...part }),
        fill: (blocks) => context.emit({ kind: 'fillBlocks', ...blocks }),
        stop: (move) => context.emit({ kind: 'stopMove', move }),
        copyHome: (from, to) => context.emit({ kind: 'copyHome', from, to }),
      },
    );
    this.#forecast = new MemoryForecast(cache, this.#blockMoves, slackBlocks(config.rangeBlocks));
  }

  get #scheduler(): Batcher {
    return this.#context.scheduler;
  }

  override get overflow(): OverflowMemory {
    return this;
  }

  /** When lending has work of its own: `wake` is due then as well. It is not part of `nextUs`, because it never ends. */
  get tickUs(): number {
    return Math.min(this.rmanager.nextUs, this.#blockMoves.cache.nextUs);
  }

  /** Stalled sequences and starved prompts: while there are any, an idle instance is waiting for memory. */
  override get pending(): number {
    return this.stalls.size + Number(this.#forecast.isStarved);
  }

  get totals(): BorrowingTotals {
    const { rmanager } = this;
    let remoteBlocks = this.#blockMoves.cache.blocks;
    for (const away of this.#blockMoves.registry.all.values()) {
      for (const [at, { blocks }] of away.remoteCounts(this.#config.instance, rmanager.table))
        if (at !== this.#config.instance) remoteBlocks += blocks;
    }
    return {
      ...this.#blockMoves.counts,
      lentBlocks: sum(rmanager.creditor.totals),
      borrowedBlocks: sum(rmanager.debtor.totals),
      remoteBlocks,
      keptBlocks: this.#blockMoves.cache.blocks,
      ownHostBlocks: this.#host.local,
      stalls: this.stalls.count,
      stallUs: this.stalls.us,
    };
  }

  override handle(event: InstanceEvent<Identified, unknown>): Handled {
    this.#blockMoves.cache.expire(this.#context.nowUs);
    const handled = this.#handle(event);
    if (this.#borrowLimit.hasShrunk) this.#context.failTooLong();
    return handled;
  }

  /** A `wake` may also mean that the plan has to be made again. */
  #handle(event: InstanceEvent<Identified, unknown>): Handled {
    switch (event.kind) {
      case 'lending':
        this.#receive(event.envelope);
        return 'batch';
      case 'moved':
        this.#blockMoves.arrived(event.move);
        return 'batch';
      case 'moveBroken':
        this.#blockMoves.moveBroken(event.move);
        return 'batch';
      case 'creditorCut':
        this.#applyToRManager(event);
        this.#abortStepAt(event.creditor);
        return 'shared';
      case 'instanceFailed':
        this.#applyToRManager(event);
        return 'shared';
      case 'remoteAttentionLoad':
        this.#limitRemoteAttention(event);
        return 'batch';
      case 'lenders':
        this.#borrowLimit.update(event.lendableBlocks);
        return 'batch';
      case 'wake':
        if (this.rmanager.nextUs <= this.#context.nowUs) this.#applyToRManager({ kind: 'tick' });
        return 'shared';
      default:
        return undefined;
    }
  }

  /** A creditor cannot be reached: a step that waits for it is in vain, even where its blocks have returned meanwhile. */
  #abortStepAt(creditor: InstanceIndex): void {
    const { flight } = this.#context;
    const waits = flight?.remote?.some((work) => work.creditor === creditor) === true;
    if (flight !== undefined && (waits || this.hasLostBlocks(flight.requests))) this.#context.abortStep();
  }

  /** Cached blocks that no running sequence uses are freed before a recall is applied. */
  #receive(envelope: Envelope): void {
    const { message } = envelope;
    if (message.kind === 'recall') this.#giveUpLent(message.loan, message.keep);
    this.#applyToRManager({ kind: 'message', envelope });
  }

  /** The creditor recalls all but `keep` blocks of a loan: of the blocks in use, cached ones are freed first. */
  #giveUpLent(number: LoanNumber, keep: number): void {
    const debt = this.rmanager.debtor.find(number);
    if (debt === undefined || debt.committed) return;
    const isThere = (rblock: number): boolean => {
      const place = this.rmanager.find(rblock);
      return place?.kind === 'remote' && place.loan === number;
    };
    this.#blockMoves.cache.giveUp(debt.held - debt.idle.length - keep, isThere);
  }

  override get extraTokens(): number {
    const blocks = Math.max(0, this.#borrowLimit.blocks - slackBlocks(this.#config.rangeBlocks));
    return blocks * this.#cache.blockTokens;
  }

  /**
   * Returns the blocks that exceed the creditor's bound if home has room for them; otherwise the creditor delays their
   * attention.
   */
  #limitRemoteAttention(event: Extract<InstanceEvent, { kind: 'remoteAttentionLoad' }>): void {
    const held = this.rmanager.debtor.totals.find(({ creditor }) => creditor === event.creditor)?.blocks ?? 0;
    const { availablePages, blockPages } = this.#cache;
    const available = Math.floor(availablePages / blockPages) - this.#config.policy.highWaterBlocks;
    // Blocks that running sequences still need are committed to them.
    const ahead = Math.ceil(this.#scheduler.pagesOutstanding / blockPages) - this.#blockMoves.leavingBlocks;
    if (available - Math.max(0, ahead) >= held) this.#applyToRManager(event);
  }

  #applyToRManager(event: RManagerEvent): void {
    for (const effect of this.rmanager.step(this.#context.nowUs, event)) this.#apply(effect);
  }

  /** Some of these sequences lost blocks: their step is useless. */
  hasLostBlocks(planned: readonly { readonly sequence: Sequence }[]): boolean {
    return planned.some(({ sequence }) => this.#blockMoves.registry.all.get(sequence)?.broken === true);
  }

  /** Sequences that lost blocks return to the queue. */
  override beforeStep(): void {
    this.#blockMoves.applyArrived();
    this.#admissionHold.look(this.rmanager.creditor.hold, this.#scheduler);
    for (const [sequence, { broken }] of this.#blockMoves.registry.all) if (broken) this.#scheduler.recompute(sequence);
  }

  override launched(flight: InFlight<RunningRequest> | undefined): void {
    if (this.#demand(flight)) this.#context.limitToOneStep();
  }

  /** Reports the demand of the new plan and moves blocks out. True when that alone may let the next plan admit more. */
  #demand(flight: InFlight<RunningRequest> | undefined): boolean {
    const batcher = this.#scheduler;
    const before = this.#admissionTerms;
    this.stalls.planned(this.#context.nowUs);
    this.#forecast.admitted(batcher);
    const { shape = nothing, predictedUs = 1 } = flight ?? {};
    // Repeats until nothing changes, so that a following run of equal steps finds nothing either.
    for (;;) {
      const event = this.#forecast.demand(batcher, shape, predictedUs);
      if (event !== undefined) this.#applyToRManager(event);
      if (this.#giveUpKept(batcher) || this.#spill() || event !== undefined) continue;
      this.#blockMoves.fill(flight?.step);
      return this.#admissionTerms.some((term, i) => term !== before[i]);
    }
  }

  /** Frees cached blocks, oldest first, for running and reserving sequences once no creditor lends. */
  #giveUpKept(batcher: Batcher): boolean {
    if (!this.rmanager.isUnsatisfied) return false;
    const gathering = firstReserving(batcher)?.sequence;
    if (!this.#blockMoves.cache.giveUpOldest(gathering && this.#match(gathering)?.prefix)) return false;
    // Idle blocks count at once.
    this.#applyToRManager({ kind: 'tick' });
    return true;
  }

  /** Everything that admission depends on: the reservation ends when another prompt waits for one. */
  get #admissionTerms(): readonly unknown[] {
    const { holdsReservation: hasTurn, creditor } = this.rmanager;
    return [hasTurn, creditor.hold, this.freePages, this.#cache.availablePages];
  }

  admits(sequence: Sequence): boolean {
    if (sequence.awaitsDecodeMemory || !this.#admissionHold.admits(sequence.arrival)) return false;
    return this.rmanager.holdsReservation || this.#scheduler.capacity.isOverCapacity(sequence) !== true;
  }

  get slackPages(): number {
    return slackBlocks(this.#config.rangeBlocks) * this.#cache.blockPages;
  }

  /** The step computes attention over keys that lie elsewhere. */
  override contribute(step: StepDraft<RunningRequest>): void {
    step.remote = this.#remoteWork(step.requests);
  }

  #remoteWork(planned: readonly { readonly sequence: Sequence }[]): readonly RemoteWork[] | undefined {
    if (this.#blockMoves.registry.all.size === 0) return undefined;
    if (this.hasLostBlocks(planned))
      throw new Error('Borrower broken: a step has rows of a sequence whose blocks are lost');
    const { table, debts } = this.rmanager;
    const { instance } = this.#config;
    return remoteWork(planned, this.#blockMoves.registry.all, {
      instance,
      table,
      debts,
      blockTokens: this.#cache.blockTokens,
    });
  }

  /** Where the next step finds the blocks outside the table; undefined: there are none. */
  layoutOf(sequence: Sequence): RemoteLayout | undefined {
    return this.#blockMoves.layoutOf(sequence);
  }

  /** A creditor did not answer for keys of a sequence: the step is retried, and finally the sequence is recomputed. */
  override awaitedRows({ sequence }: RunningRequest, arrived: boolean): void {
    if (arrived) return;
    const away = this.#blockMoves.registry.all.get(sequence);
    if (away !== undefined && ++away.unanswered > unansweredMax) away.broken = true;
  }

  get freePages(): number {
    return (this.rmanager.inHand + this.#blockMoves.leavingBlocks) * this.#cache.blockPages;
  }

  remotePrefix(sequence: Sequence): RemotePrefix | undefined {
    return this.#match(sequence);
  }

  takeRemotePrefix(sequence: Sequence): number {
    const match = this.#match(sequence);
    if (match === undefined) return 0;
    this.#cache.share(sequence.chain, match.firstBlock, sequence.table);
    this.#blockMoves.adopt(sequence, match);
    return match.firstBlock + match.blocks;
  }

  /** The blocks before the remote prefix must be cached at home, and no blocks behind it. */
  #match(sequence: Sequence): RemotePrefixMatch | undefined {
    const { cache } = this.#blockMoves;
    const { receivedTokens, arriving, copier, chain, known } = sequence;
    // A prompt that is sent to another instance leaves from here, so it needs its blocks at home.
    if (cache.blocks === 0 || receivedTokens > 0 || arriving !== undefined || copier !== undefined) return undefined;
    const reusable = sequence.reusableBlocks(this.#cache.blockTokens);
    const match = cache.find(chain, reusable);
    if (match === undefined) return undefined;
    const here = this.#cache.match(chain, reusable, known);
    return here < match.firstBlock || here >= match.firstBlock + match.blocks ? undefined : match;
  }

  offload(sequence: Sequence): OffloadState {
    const isNew = this.stalls.record(this.#context.nowUs, sequence);
    if (this.#blockMoves.makesRoom || this.#spill()) return 'pending';
    return isNew || this.rmanager.isAsking ? 'pending' : 'none';
  }

  release(sequence: Sequence, ended: boolean): void {
    this.stalls.end(this.#context.nowUs, sequence);
    // Instances that only decode receive their prompts from others.
    const isWanted =
      ended &&
      this.#config.times.remoteCacheUs > 0 &&
      this.#scheduler.capacity.isOverCapacity(sequence) === true &&
      !sequence.background;
    this.#blockMoves.release(sequence, isWanted && sequence.receivedTokens === 0 ? this.#context.nowUs : undefined);
  }

  #spill(): boolean {
    const { policy, rangeBlocks } = this.#config;
    const { inHand } = this.rmanager;
    // Moved blocks must be in device memory first: after the move they cannot be loaded by name.
    if (inHand > 0) this.#cache.flushLoads();
    const home = { batcher: this.#scheduler, cache: this.#cache, blockMoves: this.#blockMoves };
    return spill({ ...home, rangeBlocks, lowWaterBlocks: policy.lowWaterBlocks, inHand });
  }

  #apply(effect: LendingEffect): void {
    switch (effect.kind) {
      case 'send':
        this.#context.emit({ kind: 'lending', envelope: effect.envelope });
        break;
      case 'lost':
        this.#blockMoves.lose(effect.rblocks);
        break;
      case 'vacate':
        this.#blockMoves.vacate(effect.rblocks);
        break;
      case 'fetch':
        this.#blockMoves.copies.fetch(effect.settlement, effect.rblocks);
        break;
      case 'cancelFetch':
        this.#blockMoves.copies.cancelFetch(effect.settlement, effect.rblocks);
        break;
      case 'placed':
        this.#blockMoves.placed(effect.rblock);
        break;
      case 'granted':
        this.#lentPages.granted(effect);
        break;
      case 'reclaimed':
        this.#lentPages.reclaimed(effect);
        break;
      case 'anomaly':
        this.#context.config.messageCounts?.count(effect.anomaly, effect.message);
        break;
      default:
        assertNever(effect);
    }
  }

  /** Throws unless every rBlock has one holder, and every sequence has all of its blocks somewhere. */
  override check(): void {
    this.rmanager.check();
    this.#blockMoves.check();
    this.#host.checkAlone();
  }
}

/** Number of unanswered requests in a row before the blocks of a slow creditor are given up. */
const unansweredMax = 2;

const nothing = { rows: 0, decodeRows: 0 };

function sum(totals: readonly { readonly blocks: number }[]): number {
  return totals.reduce((all, { blocks }) => all + blocks, 0);
}
