// The instance machine: takes requests, plans steps over its KV memory, and turns step results into events.
import { Batcher } from '../policy/batching/batcher.ts';
import { BlockCache } from '../policy/blocks/block-cache.ts';
import type { BlockPool } from '../policy/blocks/block-pool.ts';
import { wideZero } from '../util/wide-zero.ts';
import { overloaded, Throughput, tooLargeToLand, tooLong } from './admission.ts';
import { CacheJournal } from './cache-journal.ts';
import { createDecodeCheck } from './decode-check.ts';
import type { DecodeLeg } from './departures.ts';
import type { InstanceEffect } from './effects.ts';
import { HandOffs } from './hand-offs.ts';
import { HostTraffic, nothingMoved } from './host-traffic.ts';
import { abortFor, begun, endRun, type InFlight, type PlannedStep, runStep, shapeOf, wasAborted } from './in-flight.ts';
import type { InstanceConfig } from './instance-config.ts';
import { InstanceTotals } from './instance-totals.ts';
import { type Landing, takeLanded } from './landed.ts';
import { landingMemory } from './landing-memory.ts';
import { Borrower, borrowableBlocks } from './lending/borrower.ts';
import type { InstanceEvent, PrefixFetch, StepNumber } from './messages.ts';
import { concernsPrefixes, hearPeers, type Peers } from './peers.ts';
import { Pinning } from './pinning.ts';
import type { GenerationEvent, InstanceSnapshot, RequestId } from './ports.ts';
import { PrefixMoves } from './prefix-moves.ts';
import { Presence } from './presence.ts';
import { Roster } from './roster.ts';
import { Stages } from './stages.ts';
import { StepResults } from './step-results.ts';
import type { Emit, Served, Work } from './work.ts';

/**
 * One step, or one run of equal steps, is in flight at a time; it counts only when its result is committed, so an aborted one is planned again without those who left.
 * Late, doubled and unknown events change nothing and are answered with an `ignored` effect.
 */
export class Instance<Request extends { readonly id: RequestId }, S extends Served, Plan, Result> {
  readonly #config: InstanceConfig;
  readonly #journal: CacheJournal;
  readonly #cache: BlockCache;
  readonly #batcher: Batcher;
  readonly #work: Work<Request, S, Plan, Result>;
  readonly #throughput = new Throughput();
  readonly roster: Roster<S>;
  readonly #results: StepResults<Request, S, Plan, Result>;
  readonly #hostTraffic: HostTraffic;
  readonly #totals = new InstanceTotals();
  #arrivalNumber = 0;
  #steps: StepNumber = 0;
  #inFlight: InFlight<S> | undefined;
  #abortedLast = false;
  readonly handOffs: HandOffs<Request, S>;
  readonly #prefixes: PrefixMoves<Request, S>;
  readonly #pinning: Pinning<Request, S>;
  readonly #presence: Presence<S>;
  readonly #stages: Stages<Request, S, Plan, Result>;
  readonly #peers: Peers<Request, S, Plan, Result>;
  readonly #landing: Landing<Request, S, Plan, Result>;
  /** It has times of its own (`nextUs`), of which a `wake` tells it too. */
  readonly borrower: Borrower | undefined;
  #effects: InstanceEffect<Plan, Request>[] = [];
  #emitted = false;
  #nowUs: number = wideZero;

  /** @param work made over the pools of the layer groups */
  constructor(config: InstanceConfig, work: (pools: readonly BlockPool[]) => Work<Request, S, Plan, Result>) {
    this.#config = config;
    this.#cache = new BlockCache({ ...config, landingPages: config.handOff?.landingPages });
    this.#journal = new CacheJournal(this.#cache, config.journalLife);
    this.borrower =
      config.borrowing && new Borrower(config.borrowing, this.#cache, (effect) => this.#effects.push(effect));
    this.#batcher = new Batcher(this.#cache, config.limits, config.cost, this.borrower);
    this.borrower?.serve(this.#batcher);
    this.#hostTraffic = new HostTraffic(this.#batcher, this.#cache);
    this.roster = new Roster(this.#batcher);
    this.handOffs = new HandOffs(config.handOff, {
      push: (effect) => this.#effects.push(effect),
      isLive: (id) => this.roster.has(id),
      life: config.journalLife,
      promptTokens: (request) => this.#work.size(request).promptTokens,
      memory: landingMemory(config.handOff, this.#cache, {
        push: (effect) => this.#effects.push(effect),
        lands: (tokens, capacityTokens) => this.#hostTraffic.lands(tokens, capacityTokens),
      }),
      settled: (served, declined) => this.#settled(served, declined),
    });
    this.#presence = new Presence(config.journalLife, config.reportUs);
    this.#prefixes = new PrefixMoves(this.#cache, {
      push: (effect) => this.#effects.push(effect),
      spares: (pages) => this.#batcher.spares(pages),
    });
    this.#pinning = new Pinning(this.#cache, config.pinShare ?? 0, {
      push: (effect) => this.#effects.push(effect),
      serve: (request) => this.#work.serve(request, this.#arrivalNumber++),
      start: (served) => this.roster.take(served),
      stop: (id) => this.#cancel(this.#nowUs, id),
      capacityTokens: () => this.capacityTokens,
    });
    this.#work = work(this.#cache.groups.map(({ pool }) => pool));
    const { departures } = this.handOffs;
    this.#stages = new Stages(
      { ...config, work: this.#work, roster: this.roster, totals: this.#totals, departures },
      {
        push: (effect) => this.#effects.push(effect),
        serve: (request) => this.#work.serve(request, this.#arrivalNumber++),
        alone: (request, decode) => this.#serve(request, decode),
        started: (served) => this.#begin(served),
      },
    );
    const parts = { batcher: this.#batcher, roster: this.roster, work: this.#work };
    const leg = { capacityTokens: this.capacityTokens, handOffs: this.handOffs, emit: this.#emit };
    const nextArrival = () => this.#arrivalNumber++;
    this.#landing = { ...parts, ...leg, check: createDecodeCheck(config, parts), nextArrival };
    this.#peers = { handOffs: this.handOffs, prefixes: this.#prefixes, stages: this.#stages };
    this.#results = new StepResults(
      { work: this.#work, batcher: this.#batcher, totals: this.#totals, departures },
      {
        emit: this.#emit,
        end: (nowUs, served, event, forget) => this.#end(nowUs, served, event, forget),
        remove: (served, forget) => this.roster.remove(served, forget),
        prefilled: (id) => this.#effects.push({ kind: 'prefilled', id }),
      },
    );
  }

  /** Tokens of the longest sequence that the pages hold, and what can be borrowed: infinite where every layer has a window and the windows fit. */
  get capacityTokens(): number {
    const borrowable = this.#config.borrowing === undefined ? 0 : borrowableBlocks(this.#config.borrowing);
    return this.#cache.capacityTokens + borrowable * this.#config.blockTokens;
  }

  /** Tokens of prompts that were found in pinned blocks. */
  get pinHitTokens(): number {
    return this.#pinning.hitTokens;
  }

  /** (layer groups): pages of the blocks of each; shared, and read at once. */
  get pools(): readonly BlockPool[] {
    return this.#cache.groups.map(({ pool }) => pool);
  }

  /** When a `wake` is due, if nothing comes before. */
  get nextUs(): number {
    return Math.min(this.#presence.nextUs, this.#prefixes.loads.nextUs, this.#pinning.nextUs);
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: InstanceEvent<Request, Result>): readonly InstanceEffect<Plan, Request>[] {
    this.#effects = [];
    this.#emitted = false;
    this.#totals.held(nowUs, this.#cache.usedPages);
    this.#nowUs = nowUs;
    this.borrower?.hear(nowUs, event);
    switch (event.kind) {
      case 'submit':
        this.#submit(nowUs, event);
        break;
      case 'cancel':
        this.#cancel(nowUs, event.id);
        break;
      case 'peer':
      case 'landed':
      case 'loaded':
      case 'prefixSent':
      case 'ssdWritten':
      case 'activations': {
        const why = hearPeers(this.#peers, event, this.#inFlight?.step);
        if (why !== undefined) this.#config.fates?.heard(event, this.roster);
        if (why !== undefined) this.#ignore(why);
        break;
      }
      case 'streamBroken':
        this.#broken(event);
        break;
      case 'pin':
      case 'unpin':
      case 'wake':
        this.#pinning.hear(nowUs, event);
        break;
      case 'tellBlocks':
        this.#effects.push(this.#journal.all());
        break;
      default:
        if ('step' in event) this.#stepEnded(nowUs, event);
    }
    this.#prefixes.loads.advance(nowUs, this.#batcher.waiting);
    const reports = event.kind === 'wake' && this.#presence.isDue(nowUs);
    if (reports) for (const asking of [this.handOffs.departures, this.#stages]) asking.askAgain();
    if (this.#inFlight === undefined) {
      this.#presence.count(this.roster, this.handOffs.departures);
      this.#next(nowUs);
    } else if (!('step' in event) && (this.#batcher.waiting.length > 0 || !concernsPrefixes(event)))
      endRun(this.#inFlight, this.#batcher.waiting[0], this.#effects);
    // Who was let in made way for the next: not only when a step ends, of which a run of equal ones has one.
    this.#prefixes.loads.advance(nowUs, this.#batcher.waiting);
    this.#prefixes.writeSsd();
    const journal = this.#journal.changes(this.#emitted || reports);
    if (journal !== undefined) this.#effects.push(journal);
    if (reports) this.#report();
    return this.#effects;
  }

  #report(): void {
    const told = this.#pinning.without(this.roster.live);
    this.#effects.push(this.#presence.report(told, this.handOffs.arrivals.awaited(), this.#journal.number));
  }

  #submit(
    nowUs: number,
    { request, decodeAt, decodeLife, prefix, group, life }: Extract<InstanceEvent<Request, Result>, { kind: 'submit' }>,
  ): void {
    const { id } = request;
    const isKnown = this.roster.has(id) || this.roster.hasLeft(id);
    if (isKnown || (life !== undefined && life !== this.#config.journalLife)) {
      this.#ignore(`submit: request ${id} ${isKnown ? 'was here before' : `is meant for life ${life}`}`, id, 'submit');
      return;
    }
    const { queueMax } = this.#config;
    const accepted = this.roster.size;
    const refusal =
      tooLong(this.#work.size(request), this.capacityTokens) ??
      (accepted >= queueMax
        ? overloaded(accepted, queueMax, this.#throughput.retryAfterMs(nowUs, accepted))
        : undefined);
    this.#emit(request.id, refusal ?? { kind: 'accepted' });
    if (refusal !== undefined) return;
    const decode = decodeAt === undefined ? undefined : { to: decodeAt, life: decodeLife };
    if (group === undefined) this.#serve(request, decode, prefix);
    else this.#stages.lead(request, group);
  }

  #serve(request: Request, decode?: DecodeLeg, prefix?: PrefixFetch): void {
    const served = this.#work.serve(request, this.#arrivalNumber++);
    if (decode !== undefined) this.handOffs.departures.add(request, served, decode);
    this.roster.take(served);
    this.#prefixes.want(served, prefix);
  }

  #settled(served: S, declined: boolean): void {
    this.#stages.drop(served.id);
    this.roster.silence(served.id);
    if (declined) this.#emit(served.id, tooLargeToLand);
    if (served.sequence.planned > 0) served.cancelled = true;
    else this.roster.remove(served, false);
  }

  /** It cannot leave: somebody else may have it. */
  #broken({ to, id, passes }: Extract<InstanceEvent<Request, Result>, { kind: 'streamBroken' }>): void {
    const served = this.handOffs.broken(to, id) ?? this.#stages.broken(to, id);
    if (served !== undefined) this.#settled(served, false);
    else if (passes !== true) this.#ignore(`streamBroken: request ${id} does not leave here`);
    if (served === undefined && passes !== true) return;
    this.#emitted = true;
    this.#effects.push({ kind: 'letGo', id, why: `the connection to instance ${to} broke` });
  }

  #cancel(nowUs: number, id: RequestId): void {
    const served = this.roster.get(id);
    const landing = this.handOffs.drop(id);
    this.#stages.drop(id);
    if (served === undefined) {
      if (!landing) this.#ignore(`cancel: request ${id} is not live`, id, 'cancel');
      this.roster.bar(id);
      return;
    }
    this.roster.silence(id);
    this.#prefixes.loads.drop(served);
    served.cancelled = true;
    const flight = this.#inFlight;
    if (flight === undefined || served.sequence.planned === 0) {
      this.roster.remove(served, false);
    } else {
      const abort = abortFor(nowUs, flight, served, this.#abortedLast);
      if (abort !== undefined) this.#effects.push(abort);
    }
  }

  #stepEnded(nowUs: number, event: Extract<InstanceEvent<Request, Result>, { step: StepNumber }>): void {
    const flight = this.#inFlight;
    if (flight?.step !== event.step) {
      const current = flight === undefined ? 'none is' : `step ${flight.step} is`;
      this.#ignore(`${event.kind}: step ${event.step} is not in flight: ${current}`);
      return;
    }
    this.#inFlight = undefined;
    this.#cache.lower?.readEnded();
    this.#abortedLast = wasAborted(flight, event.kind);
    if (event.kind === 'stepDone') {
      const stepUs = event.stepUs ?? [nowUs - flight.startedUs];
      if (flight.stages === 1) this.#config.cost.observe(flight.shape, stepUs);
      if (flight.stages === 1) this.#stages.otherRan(stepUs);
      (flight.stages === 1 ? this.#results : this.#stages).commit(nowUs, flight, event.result, stepUs);
    }
    if (event.kind === 'stepFailed') this.#effects.push(this.#results.failAll(nowUs, flight, event.message));
    this.roster.stepEnded(flight.requests);
  }

  #end(nowUs: number, served: S, event: GenerationEvent, forget: boolean): void {
    this.#throughput.ended(nowUs);
    this.#stages.drop(served.id);
    this.handOffs.departures.drop(served.id);
    this.roster.silence(served.id);
    if (event.kind === 'finished') this.#landing.check?.ended(served);
    this.#emit(served.id, event);
    this.roster.remove(served, forget);
    this.#pinning.ended(nowUs, served.id, event);
  }

  /** Between two steps: takes what has landed, and plans the next. */
  #next(nowUs: number): void {
    this.borrower?.between();
    if (this.handOffs.arrivals.size > 0) takeLanded(this.#landing);
    if (this.#stages.goFirst && this.#launchStage(nowUs)) return;
    const planned = this.#batcher.plan(this.#stages.await);
    for (const sequence of this.#batcher.admitted) this.#start(nowUs, this.roster.admit(sequence));
    if (planned.length === 0) {
      if (!this.#launchStage(nowUs)) this.borrower?.planned();
      return;
    }
    const requests = this.roster.of(planned);
    const shape = shapeOf(this.#batcher.shape);
    const predictedUs = Math.round(this.#config.cost.predictUs(shape));
    const traffic = this.#hostTraffic.planned(planned);
    const { background } = planned[0];
    const stepsMax = this.#stepsMax(requests);
    this.#run(nowUs, { predictedUs, shape, requests, stepsMax, stages: 1, background }, traffic);
  }

  /** The next chunk of a prompt that a group computes, if one is ready. */
  #launchStage(nowUs: number): boolean {
    const next = this.#stages.next();
    if (next !== undefined) this.#run(nowUs, next);
    return next !== undefined;
  }

  #run(nowUs: number, planned: PlannedStep<S>, traffic = nothingMoved): void {
    const { requests, stages } = planned;
    this.#inFlight = begun(planned, ++this.#steps, nowUs);
    const plan = this.#work.plan(stages > 1 ? [] : requests);
    this.#effects.push(runStep(this.#inFlight, plan, traffic, this.borrower?.remoteWork(requests)));
    this.borrower?.planned(planned);
    if (this.handOffs.departures.size > 0) this.handOffs.departures.launched(this.#steps);
  }

  /** How many equal steps may follow one another: until a request may end or the batcher has something to decide. */
  #stepsMax(requests: readonly S[]): number {
    let most = this.handOffs.departures.size > 0 ? 1 : this.#batcher.steadySteps();
    for (let i = 0; i < requests.length && most > 1; i++) most = Math.min(most, this.#work.growthMax(requests[i]));
    return most;
  }

  /** The first time that a request runs; a preempted one has started before. */
  #start(nowUs: number, served: S): void {
    if (served.started) return;
    served.started = true;
    this.#prefixes.loads.drop(served);
    const held = this.handOffs.arrivals.heldOf(served.id);
    if (held !== undefined) {
      this.handOffs.arrivals.drop(served.id);
      this.#work.joined(served, nowUs);
      for (const event of held) this.#emit(served.id, event);
      return;
    }
    this.#begin(served);
  }

  /** Its prompt is computed from now on. */
  #begin(served: S): void {
    const cachedTokens = served.sequence.cachedTokens ?? 0;
    this.#totals.prompt += served.sequence.promptLength;
    this.#totals.cached += cachedTokens;
    this.#pinning.started(served, cachedTokens);
    this.#emit(served.id, { kind: 'started', cachedTokens });
    this.handOffs.departures.ask(served.id);
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
    return this.#totals.snapshot(this.#batcher, this.#cache);
  }

  /** Throws unless every page is accounted for, every request is in exactly one state, and something runs while anyone waits. */
  check(): void {
    this.#batcher.check();
    this.handOffs.arrivals.check();
    this.#prefixes.loads.check();
    this.#stages.check();
    const keeping = this.handOffs.departures.computed + this.#stages.keeping(this.#inFlight);
    this.borrower?.check();
    const moving = this.#cache.moving.size + this.#prefixes.loads.size + (this.borrower?.awaited ?? 0) > 0;
    this.roster.check(this.#inFlight, moving, keeping);
  }
}
