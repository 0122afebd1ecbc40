// The lending component of an instance: moves blocks of long sequences to borrowed memory, and frees them when they are
// lost or recalled.

import { assertNever } from '../../../util/assert-never.ts';
import type { CreditorSteps } from '../../cost/creditor-steps.ts';
import type { BlockCache } from '../../kvcache/block-cache.ts';
import { LendingMemory } from '../../kvcache/lending-memory.ts';
import type { InstanceEvent } from '../../protocol/events.ts';
import type { InstanceIndex, LoanNumber } from '../../protocol/ids.ts';
import type { RemoteWork } from '../../protocol/lending-effects.ts';
import type { Envelope, LendingEffect, RManagerEvent } from '../../protocol/lending-messages.ts';
import type { InstanceSnapshot } from '../../protocol/ports.ts';
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
import { spill } from './spill.ts';
import { Stalls } from './stalls.ts';

/** Block tables of sequences change between two steps only. */
export class Borrower extends InstanceComponent<Identified, never> implements OverflowMemory {
  readonly reservesWhole = true;
  readonly rmanager: RManager;
  readonly stalls = new Stalls();
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #config: BorrowingConfig;
  readonly #steps: CreditorSteps;
  readonly #cache: BlockCache;
  readonly #host: LendingMemory;
  readonly #mover: RemoteBlockMover;
  readonly #lentPages: LentPages;
  readonly #forecast: MemoryForecast;
  readonly #admissionHold = new AdmissionHold();
  readonly #borrowLimit: BorrowLimit;
  /** The last plan has no step. */
  #isIdle = true;

  /** @param steps predicts the steps of the instance */
  constructor(context: InstanceContext<Identified, RunningRequest>, config: BorrowingConfig, steps: CreditorSteps) {
    super();
    this.#steps = steps;
    const { instance, times, stagingBlocks } = config;
    const { kvCache: cache } = context;
    const policy = { ...config.policy, unitBlocks: config.rangeBlocks };
    this.#context = context;
    this.#config = config;
    this.#borrowLimit = new BorrowLimit(config);
    this.#cache = cache;
    this.#lentPages = new LentPages(context, config.hostFirstPage !== undefined);
    const memories = {
      device: cache.lending,
      host: LendingMemory.standalone(config.hostBlocks ?? 0, cache.blockPages),
    };
    this.#host = memories.host;
    // The gManager and creditors count incarnations from 1.
    const incarnation = (context.config.incarnation ?? 0) + 1;
    this.rmanager = new RManager({ instance, incarnation, memories, policy, times, stagingBlocks });
    const { rmanager } = this;
    this.#mover = new RemoteBlockMover({
      ...{ instance, rangeBlocks: config.rangeBlocks, cache, rmanager, remoteCacheUs: times.remoteCacheUs },
      emit: (effect) => context.emit(effect),
      applyToRManager: (event) => this.#applyToRManager(event),
    });
    this.#forecast = new MemoryForecast(cache, this.#mover, slackBlocks(config.rangeBlocks));
  }

  get #scheduler(): Batcher {
    return this.#context.scheduler;
  }

  override snapshot(): Partial<InstanceSnapshot> {
    const { servedPermille } = this.#steps;
    return servedPermille === 0 ? {} : { servedAttentionPermille: servedPermille };
  }

  override get overflow(): OverflowMemory {
    return this;
  }

  /** When lending has work of its own: `wake` is due then too. Not part of `nextUs`, because heartbeats never end. */
  get tickUs(): number {
    return Math.min(this.rmanager.nextUs, this.#mover.prefixCache.nextUs);
  }

  /** Stalled sequences and a starved prompt: with any, an idle instance waits for memory. */
  override get pending(): number {
    return this.stalls.size + Number(this.#forecast.isStarved);
  }

  get totals(): BorrowingTotals {
    const { rmanager } = this;
    let remoteBlocks = this.#mover.prefixCache.blocks;
    for (const remote of this.#mover.registry.maps.values()) {
      for (const [at, { blocks }] of remote.remoteCounts(this.#config.instance, rmanager.table))
        if (at !== this.#config.instance) remoteBlocks += blocks;
    }
    return {
      ...this.#mover.counts,
      lentBlocks: sum(rmanager.creditor.totals),
      borrowedBlocks: sum(rmanager.debtor.totals),
      remoteBlocks,
      remoteCachedBlocks: this.#mover.prefixCache.blocks,
      ownHostBlocks: this.#host.local,
      settlements: rmanager.settlements,
      stalls: this.stalls.count,
      stallUs: this.stalls.us,
    };
  }

  override handle(event: InstanceEvent<Identified, unknown>): Handled {
    this.#mover.prefixCache.expire(this.#context.nowUs);
    const handled = this.#handle(event);
    if (this.#borrowLimit.hasShrunk) this.#context.failTooLong();
    return handled;
  }

  /** A `wake` is not for lending alone: the batch is planned again in any case. */
  #handle(event: InstanceEvent<Identified, unknown>): Handled {
    switch (event.kind) {
      case 'lending':
        this.#receive(event.envelope);
        return 'replan';
      case 'moved':
        this.#mover.arrived(event.move);
        return 'replan';
      case 'moveBroken':
        this.#mover.moveBroken(event.move);
        return 'replan';
      case 'creditorCut':
        this.#applyToRManager(event);
        this.#abortStepAt(event.creditor);
        return 'shared';
      case 'drain':
      case 'instanceFailed':
        this.#applyToRManager(event);
        return 'shared';
      case 'remoteAttentionLoad':
        this.#limitRemoteAttention(event);
        return 'replan';
      case 'servedAttention':
        this.#steps.servedPermille = Math.min(event.permille, this.#config.policy.remoteAttentionPermilleMax);
        return 'replan';
      case 'links':
        this.#applyToRManager(event);
        return 'cacheOnly';
      case 'lenders':
        this.#borrowLimit.update(event.lendableBlocks);
        return 'replan';
      case 'wake':
        if (this.rmanager.nextUs <= this.#context.nowUs) this.#applyToRManager({ kind: 'tick' });
        return 'shared';
      default:
        return undefined;
    }
  }

  /** A creditor is unreachable: a step that waits for it is aborted, even if the blocks have returned meanwhile. */
  #abortStepAt(creditor: InstanceIndex): void {
    const { flight } = this.#context;
    const waits = flight?.remote?.some((work) => work.creditor === creditor) === true;
    if (flight !== undefined && (waits || this.hasLostBlocks(flight.requests))) this.#context.abortStep();
  }

  /** Before a recall is applied, cached blocks that no sequence uses are freed. */
  #receive(envelope: Envelope): void {
    const { message } = envelope;
    if (message.kind === 'recall') this.#freeRecalledCache(message.loan, message.keep);
    this.#applyToRManager({ kind: 'message', envelope });
  }

  /** The creditor recalls all but `keep` blocks of a loan. Idle blocks suffice first; then cached blocks are freed. */
  #freeRecalledCache(number: LoanNumber, keep: number): void {
    const debt = this.rmanager.debtor.find(number);
    if (debt === undefined || debt.guaranteed) return;
    const isLent = (rblock: number): boolean => {
      const place = this.rmanager.find(rblock);
      return place?.kind === 'remote' && place.loan === number;
    };
    this.#mover.prefixCache.evict(debt.held - debt.idle.length - keep, isLent);
  }

  override get extraTokens(): number {
    const blocks = Math.max(0, this.#borrowLimit.blocks - slackBlocks(this.#config.rangeBlocks));
    return blocks * this.#cache.blockTokens;
  }

  /**
   * Returns the blocks that exceed the creditor's bound if home has memory for all of its blocks. Otherwise the creditor
   * delays their attention.
   */
  #limitRemoteAttention(event: Extract<InstanceEvent, { kind: 'remoteAttentionLoad' }>): void {
    const held = this.rmanager.debtor.totals.find(({ creditor }) => creditor === event.creditor)?.blocks ?? 0;
    const { availablePages, blockPages } = this.#cache;
    const available = Math.floor(availablePages / blockPages) - this.#config.policy.highWaterBlocks;
    // Running sequences still require these blocks.
    const ahead = Math.ceil(this.#scheduler.pagesOutstanding / blockPages) - this.#mover.leavingBlocks;
    if (available - Math.max(0, ahead) >= held) this.#applyToRManager(event);
  }

  #applyToRManager(event: RManagerEvent): void {
    for (const effect of this.rmanager.step(this.#context.nowUs, event)) this.#apply(effect);
  }

  /** True if some of these sequences lost blocks: their step is useless. */
  hasLostBlocks(planned: readonly { readonly sequence: Sequence }[]): boolean {
    return planned.some(({ sequence }) => this.#mover.registry.maps.get(sequence)?.broken === true);
  }

  /** Sequences that lost blocks return to the queue. */
  override beforeStep(): void {
    this.#mover.applyArrived();
    this.#admissionHold.update(this.rmanager.creditor.hold, this.#scheduler);
    for (const [sequence, { broken }] of this.#mover.registry.maps) if (broken) this.#scheduler.recompute(sequence);
    this.#reserveAnew();
  }

  /**
   * A sequence over capacity that lost guaranteed memory and cannot borrow it again gives the rest back and reserves all
   * of it anew. Otherwise it and a creditor's sequence that needs the lent blocks would wait for each other. It first waits
   * for as long as creditors take to recall other loans: their blocks may suffice.
   */
  #reserveAnew(): void {
    if (!this.#isIdle || this.stalls.size === 0 || !this.rmanager.isUnsatisfied || this.#mover.freesMemory) return;
    const { recallUs, leaseUs } = this.#config.times;
    for (const sequence of this.stalls.lasting(this.#context.nowUs, recallUs + leaseUs))
      if (this.#scheduler.capacity.isOverCapacity(sequence)) this.#scheduler.recompute(sequence);
  }

  override launched(flight: InFlight<RunningRequest> | undefined): void {
    const { creditor } = this.rmanager;
    this.#isIdle = flight === undefined;
    this.#steps.begin();
    if (flight !== undefined && creditor.totals.length > 0)
      creditor.stepRuns(this.#steps.ownUs(flight.shape), this.#context.requests.tbtUsMax(Number.POSITIVE_INFINITY));
    if (this.#reportDemand(flight)) this.#context.limitToOneStep();
  }

  /** Reports the demand of the new plan, and moves blocks out. True if the next plan may admit more because of that alone. */
  #reportDemand(flight: InFlight<RunningRequest> | undefined): boolean {
    const batcher = this.#scheduler;
    const before = this.#admissionInputs;
    this.stalls.planned(this.#context.nowUs);
    this.#forecast.admitted(batcher);
    const { shape = noRows, predictedUs = 1 } = flight ?? {};
    // Repeated until nothing changes, so that no step of a run of equal steps changes anything.
    for (;;) {
      const event = this.#forecast.demand(batcher, shape, predictedUs);
      if (event !== undefined) this.#applyToRManager(event);
      if (this.#evictRemoteCache(batcher) || this.#spill() || event !== undefined) continue;
      this.#mover.fill(flight?.step);
      return this.#admissionInputs.some((input, i) => input !== before[i]);
    }
  }

  /** Frees cached blocks, oldest first, for running and reserving sequences when no creditor lends. */
  #evictRemoteCache(batcher: Batcher): boolean {
    if (!this.rmanager.isUnsatisfied) return false;
    const reserving = firstReserving(batcher)?.sequence;
    if (!this.#mover.prefixCache.evictOldest(reserving && this.#match(reserving)?.prefix)) return false;
    // The rManager counts the freed blocks as idle at once.
    this.#applyToRManager({ kind: 'tick' });
    return true;
  }

  /** What admission depends on. */
  get #admissionInputs(): readonly unknown[] {
    const { holdsReservation, creditor } = this.rmanager;
    return [holdsReservation, creditor.hold, this.freePages, this.#cache.availablePages];
  }

  admits(sequence: Sequence): boolean {
    if (sequence.waitsForDecodeMemory || !this.#admissionHold.admits(sequence.arrival)) return false;
    return this.rmanager.holdsReservation || this.#scheduler.capacity.isOverCapacity(sequence) !== true;
  }

  admitsParked(sequence: Sequence): boolean {
    return this.#admissionHold.admits(sequence.arrival) && firstReserving(this.#scheduler) === undefined;
  }

  get slackPages(): number {
    return slackBlocks(this.#config.rangeBlocks) * this.#cache.blockPages;
  }

  /** Attention of the step over keys outside device memory at home. */
  override contribute(step: StepDraft<RunningRequest>): void {
    step.remote = this.#remoteWork(step.requests);
  }

  #remoteWork(planned: readonly { readonly sequence: Sequence }[]): readonly RemoteWork[] | undefined {
    if (this.#mover.registry.maps.size === 0) return undefined;
    if (this.hasLostBlocks(planned))
      throw new Error('Borrower broken: a step has rows of a sequence whose blocks are lost');
    const { table, debts } = this.rmanager;
    const { instance } = this.#config;
    return this.#mover.registry.remoteWork(planned, { instance, table, debts, blockTokens: this.#cache.blockTokens });
  }

  /** How the next step finds the blocks outside the table; undefined: there are none. */
  layoutOf(sequence: Sequence): RemoteLayout | undefined {
    return this.#mover.layoutOf(sequence);
  }

  /** After a creditor has not answered for a sequence, the step is retried. After several times the sequence is recomputed. */
  override waitEnded({ sequence }: RunningRequest, arrived: boolean): void {
    if (arrived) return;
    const remote = this.#mover.registry.maps.get(sequence);
    if (remote !== undefined && ++remote.unanswered > unansweredMax) remote.broken = true;
  }

  get freePages(): number {
    return (this.rmanager.idleBlocks + this.#mover.leavingBlocks) * this.#cache.blockPages;
  }

  remotePrefix(sequence: Sequence): RemotePrefix | undefined {
    return this.#match(sequence);
  }

  takeRemotePrefix(sequence: Sequence): number {
    const match = this.#match(sequence);
    if (match === undefined) return 0;
    this.#cache.share(sequence.chain, match.firstBlock, sequence.table);
    this.#mover.adopt(sequence, match);
    return match.firstBlock + match.blocks;
  }

  /** The cache at home must hold the blocks before the remote prefix, and must end within it. */
  #match(sequence: Sequence): RemotePrefixMatch | undefined {
    const { prefixCache } = this.#mover;
    const { receivedTokens, arriving, copier, chain, known } = sequence;
    // A prompt that is sent to another instance requires its blocks at home.
    if (prefixCache.blocks === 0 || receivedTokens > 0 || arriving !== undefined || copier !== undefined)
      return undefined;
    const reusable = sequence.reusableBlocks(this.#cache.blockTokens);
    const match = prefixCache.find(chain, reusable);
    if (match === undefined) return undefined;
    const atHome = this.#cache.match(chain, reusable, known);
    return atHome < match.firstBlock || atHome >= match.firstBlock + match.blocks ? undefined : match;
  }

  offload(sequence: Sequence): OffloadState {
    const isNew = this.stalls.record(this.#context.nowUs, sequence);
    if (this.#mover.freesMemory || this.#spill()) return 'pending';
    return isNew || this.rmanager.isAsking ? 'pending' : 'none';
  }

  release(sequence: Sequence, ended: boolean): void {
    this.stalls.end(this.#context.nowUs, sequence);
    const isCacheable =
      ended &&
      this.#config.times.remoteCacheUs > 0 &&
      this.#scheduler.capacity.isOverCapacity(sequence) === true &&
      !sequence.background;
    // A received prompt is cached at the instance that prefilled it.
    this.#mover.release(sequence, isCacheable && sequence.receivedTokens === 0 ? this.#context.nowUs : undefined);
  }

  #spill(): boolean {
    const { policy, rangeBlocks } = this.#config;
    const { idleBlocks } = this.rmanager;
    // Blocks must be loaded to device memory before they move: a later load would not find them.
    if (idleBlocks > 0) this.#cache.flushLoads();
    const home = { batcher: this.#scheduler, cache: this.#cache, mover: this.#mover };
    return spill({ ...home, rangeBlocks, lowWaterBlocks: policy.lowWaterBlocks, idleBlocks });
  }

  #apply(effect: LendingEffect): void {
    switch (effect.kind) {
      case 'send':
        this.#context.emit({ kind: 'lending', envelope: effect.envelope });
        break;
      case 'rblocksLost':
        this.#mover.rblocksLost(effect.rblocks);
        break;
      case 'vacate':
        this.#mover.vacate(effect.rblocks);
        break;
      case 'stage':
        this.#mover.settlementCopies.stage(effect.settlement, effect.rblocks);
        break;
      case 'cancelStaging':
        this.#mover.settlementCopies.cancelStaging(effect.settlement, effect.rblocks);
        break;
      case 'placed':
        this.#mover.placed(effect.rblock);
        break;
      case 'granted':
        this.#lentPages.granted(effect);
        break;
      case 'reclaimed':
        this.#lentPages.reclaimed(effect);
        if (this.rmanager.creditor.totals.length === 0) this.#steps.servedPermille = 0;
        break;
      case 'anomaly':
        this.#context.config.messageCounts?.count(effect.anomaly, effect.message);
        break;
      default:
        assertNever(effect);
    }
  }

  /** Throws unless every rBlock has one holder, and all blocks of every sequence have a location. */
  override check(): void {
    this.rmanager.check();
    this.#mover.check();
    this.#host.checkStandalone();
  }
}

/** Largest number of unanswered queries in a row before the sequence is recomputed. */
const unansweredMax = 2;

const noRows = { rows: 0, decodeRows: 0 };

function sum(totals: readonly { readonly blocks: number }[]): number {
  return totals.reduce((all, { blocks }) => all + blocks, 0);
}
