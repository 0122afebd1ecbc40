// The instance machine: takes requests, plans steps over its KV memory, and turns step results into events.
import { Batcher } from '../policy/batching/batcher.ts';
import { BlockCache } from '../policy/blocks/block-cache.ts';
import type { BlockPool } from '../policy/blocks/block-pool.ts';
import type { StepPredictor } from '../policy/cost/step-shape.ts';
import { decodeRefusal, overloaded, Throughput, tooLargeToLand, tooLong } from './admission.ts';
import { CacheJournal } from './cache-journal.ts';
import type { InstanceEffect } from './effects.ts';
import { HandOffs } from './hand-offs.ts';
import { HostTraffic } from './host-traffic.ts';
import { type InFlight, worthAborting } from './in-flight.ts';
import type { InstanceConfig } from './instance-config.ts';
import { InstanceTotals } from './instance-totals.ts';
import { type InstanceEvent, type InstanceIndex, isOfPrefix, type StepNumber } from './messages.ts';
import { Pinning } from './pinning.ts';
import type { GenerationEvent, InstanceSnapshot, RequestId } from './ports.ts';
import { PrefixMoves } from './prefix-moves.ts';
import { Presence } from './presence.ts';
import { Roster } from './roster.ts';
import { StepResults } from './step-results.ts';
import type { InstanceReport } from './watch.ts';
import type { Emit, Served, Work } from './work.ts';

/**
 * One step, or one run of equal steps, is in flight at a time; it counts only when its result is committed, so an aborted one is planned again without those who left.
 * Late, doubled and unknown events change nothing and are answered with an `ignored` effect.
 */
export class Instance<Request extends { readonly id: RequestId }, S extends Served, Plan, Result> {
  readonly #config: InstanceConfig;
  readonly #journal: CacheJournal;
  readonly #cache: BlockCache;
  readonly #cost: StepPredictor;
  readonly #batcher: Batcher;
  readonly #work: Work<Request, S, Plan, Result>;
  readonly #throughput = new Throughput();
  readonly #roster: Roster<S>;
  readonly #results: StepResults<Request, S, Plan, Result>;
  readonly #hostTraffic: HostTraffic;
  readonly #totals = new InstanceTotals();
  #arrivalNumber = 0;
  #steps: StepNumber = 0;
  #inFlight: InFlight<S> | undefined;
  #abortedLast = false;
  readonly #handOffs: HandOffs<Request, S>;
  readonly #prefixes: PrefixMoves<Request, S>;
  readonly #pinning: Pinning<Request, S>;
  readonly #presence: Presence<S>;
  #effects: InstanceEffect<Plan, Request>[] = [];
  #emitted = false;
  #nowUs = 0;

  /** @param work made over the pools of the layer groups */
  constructor(config: InstanceConfig, work: (pools: readonly BlockPool[]) => Work<Request, S, Plan, Result>) {
    this.#config = config;
    this.#cost = config.cost;
    this.#cache = new BlockCache(config);
    this.#journal = new CacheJournal(this.#cache, config.journalLife);
    this.#batcher = new Batcher(this.#cache, config.limits, this.#cost);
    this.#hostTraffic = new HostTraffic(this.#batcher, this.#cache);
    this.#roster = new Roster(this.#batcher);
    this.#handOffs = new HandOffs(config.handOff, {
      push: (effect) => this.#effects.push(effect),
      isLive: (id) => this.#roster.has(id),
      life: config.journalLife,
      promptTokens: (request) => this.#work.size(request).promptTokens,
      lands: (tokens) => this.#hostTraffic.lands(tokens, config.handOff?.landingTokens ?? 0),
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
      start: (served) => this.#roster.take(served),
      stop: (id) => this.#cancel(this.#nowUs, id),
      capacityTokens: () => this.capacityTokens,
    });
    this.#work = work(this.#cache.groups.map(({ pool }) => pool));
    this.#results = new StepResults(
      { work: this.#work, batcher: this.#batcher, totals: this.#totals, departures: this.#handOffs.departures },
      {
        emit: this.#emit,
        end: (nowUs, served, event, forget) => this.#end(nowUs, served, event, forget),
        remove: (served, forget) => this.#roster.remove(served, forget),
        prefilled: (id) => this.#effects.push({ kind: 'prefilled', id }),
      },
    );
  }

  /** Tokens of the longest sequence that the pages hold: infinite where every layer has a window and the windows fit. */
  get capacityTokens(): number {
    return this.#cache.capacityTokens;
  }

  /** Tokens of prompts that were found in pinned blocks. */
  get pinHitTokens(): number {
    return this.#pinning.hitTokens;
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
    switch (event.kind) {
      case 'submit':
        this.#submit(nowUs, event);
        break;
      case 'cancel':
        this.#cancel(nowUs, event.id);
        break;
      case 'peer':
        this.#hear(event);
        break;
      case 'landed':
        if (!this.#handOffs.arrivals.land(event.from, event.id, event.held))
          this.#ignore(`landed: request ${event.id} is not expected`);
        break;
      case 'loaded':
      case 'prefixSent':
      case 'ssdWritten': {
        const why = this.#prefixes.tell(event);
        if (why !== undefined) this.#ignore(`${event.kind}: ${why}`);
        break;
      }
      case 'streamBroken':
        this.#broken(event.to, event.id);
        break;
      case 'pin':
      case 'unpin':
      case 'wake':
        this.#pinning.hear(nowUs, event);
        break;
      case 'tellBlocks':
        this.#effects.push(
          this.#journal.all() ?? { kind: 'ignored', message: 'Ignored tellBlocks: no journal is kept' },
        );
        break;
      default:
        this.#stepEnded(nowUs, event);
    }
    this.#prefixes.loads.advance(nowUs, this.#batcher.waiting);
    const reports = event.kind === 'wake' && this.#presence.isDue(nowUs);
    if (reports) this.#handOffs.departures.askAgain();
    if (this.#inFlight === undefined) {
      this.#presence.count(this.#roster.live);
      this.#next(nowUs);
    } else if (!('step' in event)) this.#endRun(this.#inFlight);
    this.#prefixes.writeSsd();
    const journal = this.#journal.changes(this.#emitted || reports);
    if (journal !== undefined) this.#effects.push(journal);
    if (reports) this.#effects.push({ kind: 'report', report: this.#report() });
    return this.#effects;
  }

  #report(): InstanceReport {
    return this.#presence.report(
      this.#pinning.without(this.#roster.live),
      this.#handOffs.arrivals.awaited(),
      this.#journal.number,
    );
  }

  #submit(
    nowUs: number,
    { request, decodeAt, decodeLife, prefix, life }: Extract<InstanceEvent<Request, Result>, { kind: 'submit' }>,
  ): void {
    const { id } = request;
    const isKnown = this.#roster.has(id) || this.#roster.hasLeft(id);
    if (isKnown || (life !== undefined && life !== this.#config.journalLife)) {
      this.#ignore(`submit: request ${id} ${isKnown ? 'was here before' : `is meant for life ${life}`}`);
      return;
    }
    const { queueMax } = this.#config;
    const accepted = this.#roster.size;
    const refusal =
      tooLong(this.#work.size(request), this.capacityTokens) ??
      (accepted >= queueMax
        ? overloaded(accepted, queueMax, this.#throughput.retryAfterMs(nowUs, accepted))
        : undefined);
    this.#emit(request.id, refusal ?? { kind: 'accepted' });
    if (refusal !== undefined) return;
    const served = this.#work.serve(request, this.#arrivalNumber++);
    if (decodeAt !== undefined) this.#handOffs.departures.add(request, served, decodeAt, decodeLife);
    this.#roster.take(served);
    this.#prefixes.want(served, prefix);
  }

  #hear({ from, message }: Extract<InstanceEvent<Request, Result>, { kind: 'peer' }>): void {
    const why = isOfPrefix(message)
      ? this.#prefixes.hear(from, message)
      : this.#handOffs.hear(from, message, this.#inFlight?.step);
    if (why !== undefined) this.#ignore(`${message.kind}: ${why}`);
  }

  #settled(served: S, declined: boolean): void {
    this.#roster.silence(served.id);
    if (declined) this.#emit(served.id, tooLargeToLand);
    if (served.sequence.planned > 0) served.cancelled = true;
    else this.#roster.remove(served, false);
  }

  /** It cannot leave: somebody else may have it. */
  #broken(to: InstanceIndex, id: RequestId): void {
    const served = this.#handOffs.broken(to, id);
    if (served === undefined) {
      this.#ignore(`streamBroken: request ${id} does not leave here`);
      return;
    }
    this.#settled(served, false);
    this.#emitted = true;
    this.#effects.push({ kind: 'letGo', id, why: `the connection to instance ${to} broke` });
  }

  #cancel(nowUs: number, id: RequestId): void {
    const served = this.#roster.get(id);
    const landing = this.#handOffs.drop(id);
    if (served === undefined) {
      if (!landing) this.#ignore(`cancel: request ${id} is not live`);
      this.#roster.bar(id);
      return;
    }
    this.#roster.silence(id);
    this.#prefixes.loads.drop(served);
    served.cancelled = true;
    const flight = this.#inFlight;
    if (flight === undefined || served.sequence.planned === 0) {
      this.#roster.remove(served, false);
    } else if (!flight.ending && worthAborting(nowUs, flight, served, this.#abortedLast)) {
      flight.ending = true;
      this.#effects.push({ kind: 'abortStep', step: flight.step });
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
    this.#abortedLast = event.kind === 'stepAborted' && !flight.yielding;
    if (event.kind === 'stepDone') {
      const stepUs = event.stepUs ?? [nowUs - flight.startedUs];
      this.#cost.observe(flight.shape, stepUs);
      this.#results.commit(nowUs, flight, event.result, stepUs);
    }
    if (event.kind === 'stepFailed') this.#failStep(nowUs, flight, event.message);
    for (const served of flight.requests) if (served.cancelled) this.#roster.remove(served, false);
  }

  #failStep(nowUs: number, flight: InFlight<S>, message: string): void {
    const figures = `step ${flight.step}, ${flight.requests.length} requests, ${flight.shape.rows} rows`;
    this.#effects.push({ kind: 'fault', message: `Cannot run a step: ${message}: ${figures}` });
    this.#results.failAll(nowUs, flight, figures);
  }

  #end(nowUs: number, served: S, event: GenerationEvent, forget: boolean): void {
    this.#throughput.ended(nowUs);
    this.#handOffs.departures.drop(served.id);
    this.#roster.silence(served.id);
    this.#emit(served.id, event);
    this.#roster.remove(served, forget);
    this.#pinning.ended(nowUs, served.id, event);
  }

  /** Between two steps: takes what has landed, and plans the next. */
  #next(nowUs: number): void {
    for (const { id, request, held } of this.#handOffs.arrivals.takeLanded()) {
      const late = this.#config.handOff?.rechecks === true ? this.#lateness(request) : undefined;
      if (late === undefined) {
        this.#roster.take(this.#work.resume(request, this.#arrivalNumber++, held));
      } else {
        this.#handOffs.arrivals.drop(id);
        this.#emit(id, late);
      }
    }
    this.#launch(nowUs);
  }

  /** The refusal of a request that has landed where all that is here would decode too slowly with it, or not fit. */
  #lateness(request: Request): GenerationEvent | undefined {
    const sequences = [...this.#batcher.running, ...this.#batcher.waiting].filter(({ background }) => !background);
    const { promptTokens } = this.#work.size(request);
    const lengths = [promptTokens + 1, ...sequences.map(({ length }) => length)];
    return decodeRefusal({
      lengths,
      capacityTokens: this.capacityTokens,
      blockTokens: this.#config.blockTokens,
      cost: this.#cost,
      tbtUsMax: this.#roster.tbtUsMax(this.#work.tbtUsMax(request)),
    });
  }

  #launch(nowUs: number): void {
    const planned = this.#batcher.plan();
    for (const sequence of this.#batcher.admitted) this.#start(nowUs, this.#roster.admit(sequence));
    if (planned.length === 0) return;
    const requests = this.#roster.of(planned);
    const shape = { ...this.#batcher.shape };
    const predictedUs = Math.round(this.#cost.predictUs(shape));
    const step = ++this.#steps;
    const stepsMax = this.#stepsMax(requests);
    const { background } = planned[0];
    this.#inFlight = {
      step,
      startedUs: nowUs,
      predictedUs,
      shape,
      requests,
      stepsMax,
      background,
      ending: false,
      yielding: false,
    };
    const plan = this.#work.plan(requests);
    const { loadTokens, storeTokens } = this.#hostTraffic.planned(planned);
    this.#effects.push({ kind: 'runStep', step, plan, predictedUs, shape, stepsMax, loadTokens, storeTokens });
    if (this.#handOffs.departures.size > 0) this.#handOffs.departures.launched(step);
  }

  /** How many equal steps may follow one another: until a request may end or the batcher has something to decide. */
  #stepsMax(requests: readonly S[]): number {
    let most = this.#handOffs.departures.size > 0 ? 1 : this.#batcher.steadySteps();
    for (let i = 0; i < requests.length && most > 1; i++) most = Math.min(most, this.#work.growthMax(requests[i]));
    return most;
  }

  /** What was just heard may change what the next step computes. */
  #endRun(flight: InFlight<S>): void {
    // Batch jobs yield at once to whoever waits for an answer.
    const yields = flight.background && !flight.yielding && this.#batcher.waiting[0]?.background === false;
    if (!yields && (flight.stepsMax === 1 || flight.ending)) return;
    flight.yielding = yields;
    flight.ending = true;
    this.#effects.push({ kind: yields ? 'abortStep' : 'endRun', step: flight.step });
  }

  /** The first time that a request runs; a preempted one has started before. */
  #start(nowUs: number, served: S): void {
    if (served.started) return;
    served.started = true;
    this.#prefixes.loads.drop(served);
    const held = this.#handOffs.arrivals.heldOf(served.id);
    if (held !== undefined) {
      this.#handOffs.arrivals.drop(served.id);
      this.#work.joined(served, nowUs);
      for (const event of held) this.#emit(served.id, event);
      return;
    }
    const cachedTokens = served.sequence.cachedTokens ?? 0;
    this.#totals.prompt += served.sequence.promptLength;
    this.#totals.cached += cachedTokens;
    this.#pinning.started(served, cachedTokens);
    this.#emit(served.id, { kind: 'started', cachedTokens });
    this.#handOffs.departures.ask(served.id);
  }

  readonly #emit: Emit = (id, event) => {
    if (this.#pinning.computes(id)) return;
    this.#emitted = true;
    this.#effects.push({ kind: 'emit', id, event });
  };

  #ignore(message: string): void {
    this.#effects.push({ kind: 'ignored', message: `Ignored ${message}` });
  }

  snapshot(): InstanceSnapshot {
    return this.#totals.snapshot(this.#batcher, this.#cache);
  }

  /** Throws unless every page is accounted for, every request is in exactly one state, and something runs while anyone waits. */
  check(): void {
    this.#batcher.check();
    this.#handOffs.arrivals.check();
    this.#prefixes.loads.check();
    this.#roster.check(this.#inFlight, this.#cache.moving.size + this.#prefixes.loads.size > 0);
    const { parked } = this.#batcher;
    if (parked.size !== this.#handOffs.departures.computed)
      throw new Error(
        `Instance broken: ${parked.size} prompts are parked, ${this.#handOffs.departures.computed} leave`,
      );
  }
}
