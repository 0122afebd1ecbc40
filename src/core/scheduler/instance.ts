// The instance machine: takes requests, plans steps over its KV memory, and turns step results into events.

import { wideZero } from '../../util/wide-zero.ts';
import type { BlockCache } from '../kvcache/block-cache.ts';
import type { BlockPool } from '../kvcache/block-pool.ts';
import { KvEventPublisher } from '../kvcache/events/kv-event-publisher.ts';
import { Borrower } from '../lending/debtor/borrower.ts';
import { PipelinePrefill } from '../pipeline/pipeline-prefill.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../protocol/ids.ts';
import type { InstanceSnapshot } from '../protocol/ports.ts';
import { HandOffs } from '../transfer/hand-off/hand-offs.ts';
import {
  concernsPrefixes,
  handlePeerEvent,
  type PeerEvent,
  type Peers,
  resendUnanswered,
} from '../transfer/hand-off/peer-messages.ts';
import { createReceiveMemory } from '../transfer/hand-off/receive-memory.ts';
import { type MigrationConfig, RequestMigrator } from '../transfer/migration/request-migrator.ts';
import { EarlyStart } from '../transfer/prefix-fetch/early-start.ts';
import type { AwaitedBlocks } from '../transfer/prefix-fetch/prefix-loads.ts';
import { PrefixMoves } from '../transfer/prefix-fetch/prefix-moves.ts';
import { Batcher } from './batching/batcher.ts';
import { createDecodeCheck, type DecodeCheck } from './decode-slo-check.ts';
import type { Emit, Executor, RunningRequest } from './executor/executor.ts';
import { HeartbeatReporter } from './heartbeat-reporter.ts';
import { HostTraffic } from './host-traffic.ts';
import { createCache } from './instance-cache.ts';
import type { InstanceConfig } from './instance-config.ts';
import { InstanceTotals } from './instance-totals.ts';
import { Pinning } from './pinning.ts';
import { RequestIntake } from './request-intake.ts';
import { RequestTable } from './request-table.ts';
import { StepLauncher } from './step-launcher.ts';
import { StepResults } from './step-results.ts';

/**
 * One step, or one run of equal steps, is in flight at a time; it counts only when its result is committed, so an aborted one is planned again without those who left.
 * Late, doubled and unknown events change nothing and are answered with an `ignored` effect.
 */
export class Instance<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result> {
  readonly #config: InstanceConfig;
  readonly #journal: KvEventPublisher;
  readonly #cache: BlockCache;
  readonly #batcher: Batcher;
  readonly #work: Executor<Request, S, Plan, Result>;
  readonly roster: RequestTable<S>;
  readonly #results: StepResults<Request, S, Plan, Result>;
  readonly #totals = new InstanceTotals();
  #arrivalNumber = 0;
  readonly #reception: RequestIntake<Request, S, Plan, Result>;
  readonly #launcher: StepLauncher<Request, S, Plan, Result>;
  readonly handOffs: HandOffs<Request, S>;
  readonly #prefixes: PrefixMoves<Request, S>;
  readonly #pinning: Pinning<Request, S>;
  readonly #presence: HeartbeatReporter<S>;
  readonly #stages: PipelinePrefill<Request, S, Plan, Result>;
  readonly #peers: Peers<Request, S, Plan, Result>;
  readonly #check: DecodeCheck<Request, S> | undefined;
  /** It has times of its own (`nextUs`), of which a `wake` tells it too. */
  readonly borrower: Borrower | undefined;
  /** Undefined: what outgrows the memory makes way. */
  readonly mover: RequestMigrator | undefined;
  #effects: InstanceEffect<Plan, Request>[] = [];
  #emitted = false;
  #nowUs: number = wideZero;

  /** @param work made over the pools of the layer groups */
  constructor(
    config: InstanceConfig,
    work: (pools: readonly BlockPool[], borrower: Borrower | undefined) => Executor<Request, S, Plan, Result>,
  ) {
    this.#config = config;
    this.#cache = createCache(config, (effect) => this.#effects.push(effect));
    this.#journal = new KvEventPublisher(this.#cache, config);
    this.borrower =
      config.borrowing && new Borrower(config.borrowing, this.#cache, (effect) => this.#effects.push(effect), config);
    this.mover = config.migration && this.#createMover(config.migration);
    this.#batcher = new Batcher(this.#cache, config.limits, config.cost, this.borrower ?? this.mover);
    this.borrower?.serve(this.#batcher);
    const hostTraffic = new HostTraffic(this.#batcher, this.#cache);
    this.roster = new RequestTable(this.#batcher);
    this.handOffs = new HandOffs(config.handOff, {
      push: (effect) => this.#effects.push(effect),
      isLive: (id) => this.roster.has(id),
      incarnation: config.journalIncarnation,
      lends: config.borrowing !== undefined,
      promptTokens: (request) => this.#work.size(request).promptTokens,
      memory: createReceiveMemory(config.handOff, this.#cache, {
        push: (effect) => this.#effects.push(effect),
        lands: (tokens, capacityTokens) => hostTraffic.lands(tokens, capacityTokens),
      }),
      settled: (served, declined) => this.#reception.settled(served, declined),
    });
    this.#presence = new HeartbeatReporter(config.journalIncarnation, config.reportUs);
    this.#prefixes = this.#createPrefixes(config);
    this.#pinning = new Pinning(this.#cache, config.pinShare ?? 0, {
      push: (effect) => this.#effects.push(effect),
      serve: (request) => this.#work.serve(request, this.#arrivalNumber++),
      start: (served) => this.roster.take(served),
      stop: (id) => this.#reception.cancel(this.#nowUs, id),
      capacityTokens: () => this.capacityTokens,
    });
    this.#work = work(
      this.#cache.groups.map(({ pool }) => pool),
      this.borrower,
    );
    const { departures } = this.handOffs;
    this.#stages = new PipelinePrefill(
      { ...config, work: this.#work, cache: this.#cache, roster: this.roster, totals: this.#totals, departures },
      {
        push: (effect) => this.#effects.push(effect),
        nowUs: () => this.#nowUs,
        serve: (request) => this.#work.serve(request, this.#arrivalNumber++),
        alone: (request, decode) => this.#reception.serve(request, decode),
        started: (served) => this.#launcher.begin(served),
        broke: (nowUs, served) => this.#results.failRow(nowUs, served),
        ended: (nowUs, served, told, reason) => this.#results.endPrompt(nowUs, served, told, reason),
      },
    );
    this.#check = createDecodeCheck(config, { batcher: this.#batcher, roster: this.roster, work: this.#work });
    this.#peers = { handOffs: this.handOffs, prefixes: this.#prefixes, stages: this.#stages };
    this.#results = this.#createResults();
    this.#launcher = this.#createLauncher(hostTraffic);
    this.#reception = this.#createReception();
  }

  #createPrefixes(config: InstanceConfig): PrefixMoves<Request, S> {
    const owner = {
      push: (effect: InstanceEffect<never, Request>) => this.#effects.push(effect),
      spares: (pages: number) => this.#batcher.canSpare(pages),
      contents: config.contents !== undefined,
      nowUs: () => this.#nowUs,
      cost: config.cost,
      batcher: this.#batcher,
      start: config.startsAhead === true ? new EarlyStart(config, this.#batcher) : undefined,
      readUs: config.ssdReadUs,
    };
    return new PrefixMoves(this.#cache, owner, config);
  }

  #createResults(): StepResults<Request, S, Plan, Result> {
    const { departures } = this.handOffs;
    return new StepResults(
      { work: this.#work, batcher: this.#batcher, totals: this.#totals, departures },
      {
        emit: this.#emit,
        end: (nowUs, served, event, forget) => this.#reception.end(nowUs, served, event, forget),
        remove: (served, forget) => this.roster.remove(served, forget),
        unanswered: ({ sequence }) => this.borrower?.unanswered(sequence),
        behind: (served, answered) => this.#prefixes.loads.ran(served, answered),
        prefilled: (id) => {
          // With the journal of its blocks: whoever comes next may have the same prefix.
          this.#emitted = true;
          this.#effects.push({ kind: 'prefilled', id });
        },
        computed: (served) => this.#prefixes.offers.offer(served),
      },
    );
  }

  #createLauncher(hostTraffic: HostTraffic): StepLauncher<Request, S, Plan, Result> {
    const { capacityTokens, borrower, mover, handOffs, roster } = this;
    const parts = { borrower, mover, handOffs, roster, batcher: this.#batcher, work: this.#work, emit: this.#emit };
    const landing = { ...parts, capacityTokens, check: this.#check, nextArrival: () => this.#arrivalNumber++ };
    const machines = { stages: this.#stages, loads: this.#prefixes.loads, pinning: this.#pinning };
    const { cost } = this.#config;
    return new StepLauncher({ ...parts, ...machines, cost, hostTraffic, landing, totals: this.#totals }, (effect) =>
      this.#effects.push(effect),
    );
  }

  #createReception(): RequestIntake<Request, S, Plan, Result> {
    const { handOffs, roster } = this;
    const machines = { handOffs, roster, work: this.#work, stages: this.#stages, prefixes: this.#prefixes };
    return new RequestIntake(
      { ...this.#config, ...machines, launcher: this.#launcher, pinning: this.#pinning, check: this.#check },
      {
        emit: this.#emit,
        ignore: (message, id, kind) => this.#ignore(message, id, kind),
        say: (effect) => {
          this.#emitted = true;
          this.#effects.push(effect);
        },
        nextArrival: () => this.#arrivalNumber++,
        capacityTokens: () => this.capacityTokens,
        ownCapacityTokens: () => this.#ownCapacityTokens,
      },
    );
  }

  #createMover(config: MigrationConfig): RequestMigrator {
    return new RequestMigrator(config, this.#cache, {
      push: (effect) => this.#effects.push(effect),
      idOf: (sequence) => this.roster.holder(sequence)?.id,
      leave: (sequence, to) => {
        const served = this.roster.holder(sequence);
        if (served !== undefined) this.handOffs.departures.move(this.#work.requestOf(served), served, to);
      },
    });
  }

  /** Tokens of the longest sequence that the pages hold, and what can be borrowed, or a bigger instance could go on with: infinite where every layer has a window and the windows fit. */
  get capacityTokens(): number {
    return Math.max(this.#ownCapacityTokens, this.#config.migration?.capacityTokens ?? 0);
  }

  /** Without bigger instances. */
  get #ownCapacityTokens(): number {
    return this.#cache.capacityTokens + (this.borrower?.borrowableBlocks ?? 0) * this.#config.blockTokens;
  }

  /** Whose rows are in the step that runs. */
  get inFlight(): readonly S[] {
    return this.#launcher.flight?.requests ?? [];
  }

  /** Does it run some layers of a prompt that is not computed? */
  hasStage(id: RequestId): boolean {
    return this.#stages.has(id);
  }

  /** Tokens of prompts that were found in pinned blocks. */
  get pinHitTokens(): number {
    return this.#pinning.hitTokens;
  }

  /** (layer groups): pages of the blocks of each; shared, and read at once. */
  get pools(): readonly BlockPool[] {
    return this.#cache.groups.map(({ pool }) => pool);
  }

  /** Blocks that its cache holds, in all tiers: for those who look on. */
  get cached(): Pick<BlockCache, 'holds' | 'indexedDigests' | 'pinned'> {
    return this.#cache;
  }

  /** What the step in flight has still to wait for, by place in its plan: asked for when it begins. */
  arriving(nowUs: number): readonly AwaitedBlocks[] {
    return this.#prefixes.loads.awaited(nowUs, this.inFlight);
  }

  /** Is a prefix on its way to another instance, and stays where it is until it has left? For those who look on. */
  sends(to: InstanceIndex, id: RequestId): boolean {
    return this.#prefixes.sends.has(to, id);
  }

  /** Prefixes that come or leave. */
  get moving(): number {
    return this.#prefixes.moving;
  }

  /** When a `wake` is due, if nothing comes before. */
  get nextUs(): number {
    return Math.min(this.#presence.nextUs, this.#prefixes.nextUs, this.#stages.prefixes.nextUs, this.#pinning.nextUs);
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: InstanceEvent<Request, Result>): readonly InstanceEffect<Plan, Request>[] {
    this.#effects = [];
    this.#emitted = false;
    this.#totals.held(nowUs, this.#cache.usedPages);
    this.#nowUs = nowUs;
    this.#hearOfMemory(nowUs, event);
    switch (event.kind) {
      case 'submit':
        this.#reception.submit(nowUs, event);
        break;
      case 'cancel':
        this.#reception.cancel(nowUs, event.id);
        break;
      case 'peer':
      case 'landed':
      case 'arriving':
      case 'loaded':
      case 'prefixSent':
      case 'ssdWritten':
      case 'stores':
      case 'activations':
      case 'coming':
        this.#hearPeers(event);
        break;
      case 'streamBroken':
        this.#reception.broken(event);
        break;
      case 'pin':
      case 'unpin':
      case 'wake':
        this.#pinning.hear(nowUs, event);
        break;
      case 'migrate':
        this.mover?.grant(event.id, { to: event.to, incarnation: event.incarnation });
        break;
      case 'requestSnapshot':
        this.#effects.push(...this.#journal.snapshot());
        break;
      default:
        if ('step' in event) this.#stepEnded(nowUs, event);
    }
    this.#awaitPrefixes(nowUs);
    const reports = event.kind === 'wake' && this.#presence.isDue(nowUs);
    if (reports) resendUnanswered(this.#peers, this.mover, this.#config.fates);
    // Whoever has memory elsewhere looks before each step at how much is left here, which prefixes take and give back.
    const looks = this.borrower !== undefined || this.mover !== undefined;
    const waits = this.#batcher.waiting.length > 0 || !this.#stages.isEmpty;
    if (this.#launcher.flight === undefined) {
      this.#presence.count(this.roster, this.handOffs.departures);
      this.#launcher.next(nowUs);
    } else if (!('step' in event) && (looks || waits || !concernsPrefixes(event))) this.#launcher.endRun();
    // Who was let in made way for the next: not only when a step ends, of which a run of equal ones has one.
    this.#prefixes.advance(nowUs, this.#batcher.waiting);
    this.#prefixes.writeSsd();
    // A store has nothing else to say.
    const journal = this.#journal.changes(this.#emitted || reports || this.#config.keeps === true);
    if (journal !== undefined) this.#effects.push(journal);
    if (reports) this.#report();
    return this.#effects;
  }

  /** Whoever waits for one too long goes on without. */
  #awaitPrefixes(nowUs: number): void {
    this.#prefixes.advance(nowUs, this.#batcher.waiting);
    this.#stages.prefixes.advance(nowUs);
  }

  #hearPeers(event: PeerEvent<Request>): void {
    const why = handlePeerEvent(this.#peers, event, this.#launcher.flight?.step);
    if (why === undefined) return;
    this.#config.fates?.heard(event, this.roster);
    this.#ignore(why);
  }

  #report(): void {
    const told = this.#pinning.without(this.roster.live);
    this.#effects.push(this.#presence.report(told, this.handOffs.arrivals.awaited(), this.#journal.number));
  }

  #stepEnded(nowUs: number, event: Extract<InstanceEvent<Request, Result>, { step: StepNumber }>): void {
    const flight = this.#launcher.ended(event);
    if (typeof flight === 'string') {
      this.#ignore(flight);
      return;
    }
    this.#cache.lower?.readEnded();
    if (event.kind === 'stepDone') {
      const stepUs = event.stepUs ?? [nowUs - flight.startedUs];
      // What a step waited for says nothing of the next.
      const waited =
        this.#config.startsAhead === true && flight.requests.some(({ sequence }) => sequence.arriving !== undefined);
      if (flight.range === undefined && !waited) this.#config.cost.observe(flight.shape, stepUs);
      if (flight.range === undefined) this.#stages.otherRan(stepUs);
      (flight.range === undefined ? this.#results : this.#stages).commit(nowUs, flight, event.result, stepUs);
    }
    if (event.kind === 'stepFailed') this.#effects.push(this.#results.failAll(nowUs, flight, event.message));
    this.handOffs.departures.stepEnded();
    this.roster.stepEnded(flight.requests);
  }

  #hearOfMemory(nowUs: number, event: InstanceEvent<Request, Result>): void {
    this.borrower?.hear(nowUs, event);
    if (event.kind === 'creditorCut') this.#launcher.strand(event.creditor);
    if (this.borrower?.hasShrunk === true) this.#reception.failOverlong(nowUs);
    this.mover?.hear(nowUs);
  }

  readonly #emit: Emit = (id, event) => {
    if (this.#pinning.computes(id)) return;
    this.#emitted = true;
    this.#effects.push({ kind: 'emit', id, event });
  };

  #ignore(message: string, id?: RequestId, kind?: 'submit' | 'cancel'): void {
    if (id !== undefined && kind !== undefined) this.#config.fates?.met(this.roster.fateOf(id), kind);
    this.#effects.push({ kind: 'ignored', message: `Ignored ${message}` });
  }

  snapshot(): InstanceSnapshot {
    const { coefficients } = this.#config.cost;
    const { kept } = this.#prefixes;
    const snapshot = this.#totals.snapshot(this.#batcher, this.#cache);
    if (kept !== undefined) return { ...snapshot, store: kept };
    return coefficients === undefined ? snapshot : { ...snapshot, stepCost: coefficients };
  }

  /** Throws unless every page is accounted for, every request is in exactly one state, and something runs while anyone waits. */
  check(): void {
    this.#batcher.check();
    this.handOffs.arrivals.check();
    this.#prefixes.check();
    this.#stages.check();
    const keeping = this.handOffs.departures.computed + this.#stages.keeping(this.#launcher.flight);
    this.borrower?.check();
    const moving =
      this.#cache.inTransit.size +
        this.#prefixes.loads.size +
        (this.borrower?.awaited ?? 0) +
        (this.mover?.awaited ?? 0) >
      0;
    this.roster.check(this.#launcher.flight, moving, keeping);
  }
}
