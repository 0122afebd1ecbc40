// The conductor machine: answers at once whether a request is taken, passes it to an instance, and follows it to its end.
import type { Decoding } from '../policy/admission/decode-pool.ts';
import type { PlacementDecision } from '../policy/placement/placement.ts';
import { overloaded, type Refusal, type RequestSize, Throughput, tooLong } from './admission.ts';
import type { ConductorEffect } from './effects.ts';
import { type AdmissionConfig, Gate, type PoolLoads, type Verdict } from './gate.ts';
import type { ConductorEvent, InstanceIndex } from './messages.ts';
import { fetchOf, type MissReasons, type Placed, Placer, type PlacerConfig } from './placer.ts';
import type { GenerationEvent, RequestId } from './ports.ts';

export interface ConductorConfig<Request> {
  readonly instances: readonly {
    /** Tokens whose keys and values fit at once. */
    readonly capacityTokens: number;
    readonly role?: InstanceRole;
  }[];
  /** Requests accepted and not ended, over all instances. */
  readonly queueMax: number;
  readonly size: (request: Request) => RequestSize;
  /** Undefined: the instance with the fewest requests is taken. */
  readonly placement?: PlacerConfig<Request>;
  /** Undefined: whatever fits is taken. */
  readonly admission?: AdmissionConfig<Request> | undefined;
}

/** What an instance computes: prompts for others, what comes after the prompts of others, or both for its own requests. */
export type InstanceRole = 'prefill' | 'decode' | 'mixed';

/** Where an accepted request stands, as far as its instance has told. */
type Stage = 'queued' | 'prefill' | 'decode';

/** Where a request goes: `decodeAt` where another instance decodes. */
interface Route {
  readonly instance: InstanceIndex;
  readonly decodeAt: InstanceIndex | undefined;
}

interface Tracked extends Route {
  readonly placed: Placed;
  readonly decoding: Decoding | undefined;
  /** To be computed where it decodes. */
  inlineTokens: number;
  stage: Stage;
}

interface Acceptance {
  readonly decision: PlacementDecision;
  readonly route: Route;
  readonly verdict: Verdict;
  readonly inlineTokens: number;
}

/** A prompt that is computed where it decodes: `tokens` of it. */
interface Inline extends PlacementDecision {
  readonly tokens: number;
}

const nothingFetched = { ownBlocks: 0, fetchedBlocks: 0, from: undefined, transferUs: 0 };

interface InstanceView {
  readonly role: InstanceRole;
  readonly capacityTokens: number;
  requests: number;
  lost: boolean;
  /** Something was computed since the last interrupt: interrupts cannot hold the others up for ever. */
  progressed: boolean;
}

/**
 * Lives beside the gateway, so that it can refuse at once while instances compute elsewhere.
 * A request is counted from submit to its last event; after that, and after a cancel, what an instance still says of it is dropped.
 */
export class Conductor<Request extends { readonly id: RequestId }> {
  readonly #queueMax: number;
  readonly #size: (request: Request) => RequestSize;
  readonly #instances: readonly InstanceView[];
  readonly #requests = new Map<RequestId, Tracked>();
  readonly #throughput = new Throughput();
  readonly #placer: Placer<Request>;
  readonly #gate: Gate<Request>;
  #draining = false;
  #inlinePrefills = 0;
  #effects: ConductorEffect<Request>[] = [];

  constructor(config: ConductorConfig<Request>) {
    this.#size = config.size;
    this.#queueMax = config.queueMax;
    this.#instances = config.instances.map(({ capacityTokens, role = 'mixed' }) => ({
      role,
      capacityTokens,
      requests: 0,
      lost: false,
      progressed: true,
    }));
    this.#placer = new Placer(
      this.#instances.map(({ role }) => role !== 'decode'),
      config.placement,
    );
    this.#gate = new Gate(
      this.#instances.map(({ role }) => role === 'decode'),
      config.admission,
    );
  }

  /** Blocks of prompts that were found in caches, and why the others were not, counted at starts. */
  get blocks(): { readonly hits: number; readonly misses: MissReasons } {
    return { hits: this.#placer.hitBlocks, misses: this.#placer.misses };
  }

  /** Requests whose prompts were computed where they decode. */
  get inlinePrefills(): number {
    return this.#inlinePrefills;
  }

  /** How full the pools are; undefined where no request has said what it may wait. */
  loads(nowUs: number): PoolLoads | undefined {
    return this.#gate.loads(nowUs, this.#placer.waitUs(nowUs));
  }

  /** Requests accepted and not ended. */
  get accepted(): number {
    return this.#requests.size;
  }

  /** `nowUs` never goes back. The effects are to be carried out in order; a submit is answered by `accepted` or `failed` among them. */
  step(nowUs: number, event: ConductorEvent<Request>): readonly ConductorEffect<Request>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'submit':
        this.#submit(nowUs, event.request);
        break;
      case 'cancel':
        this.#cancel(event.id);
        break;
      case 'heard':
        this.#hear(nowUs, event.instance, event.id, event.event);
        break;
      case 'prefilled':
        this.#prefilled(nowUs, event.instance, event.id);
        break;
      case 'journal':
        if (this.#placer.journal(event.instance, event.journal))
          this.#effects.push({ kind: 'askBlocks', instance: event.instance });
        break;
      case 'snapshot':
        this.#placer.snapshot(event.instance, event.snapshot);
        break;
      case 'instanceLost':
        this.#lose(event.instance);
        break;
      case 'drain':
        this.#draining = true;
        this.#sayDrained();
        break;
    }
    return this.#effects;
  }

  #submit(nowUs: number, request: Request): void {
    if (this.#requests.has(request.id)) {
      this.#effects.push({ kind: 'ignored', message: `Ignored submit: request ${request.id} is live already` });
      return;
    }
    const size = this.#size(request);
    const elsewhere = this.#placer.choose(nowUs, request, size.promptTokens);
    const inline = elsewhere && this.#inline(nowUs, request, size);
    const decision = inline ?? elsewhere;
    const route =
      inline === undefined
        ? this.#route(elsewhere?.instance, size)
        : { instance: inline.instance, decodeAt: undefined };
    const verdict =
      decision &&
      this.#gate.look(nowUs, request, {
        promptTokens: size.promptTokens,
        waitUs: decision.queueUs + decision.transferUs,
        prefillUs: decision.prefillUs,
        inline: inline !== undefined,
        member: route && this.#decoderOf(route),
      });
    const refusal = this.#refuse(nowUs, size, route) ?? verdict?.refusal;
    this.#effects.push({ kind: 'emit', id: request.id, event: refusal ?? { kind: 'accepted' } });
    if (refusal !== undefined || route === undefined || decision === undefined || verdict === undefined) return;
    const inlineTokens = inline?.tokens ?? 0;
    this.#accept(nowUs, request, size.promptTokens, { decision, route, verdict, inlineTokens });
  }

  #accept(nowUs: number, request: Request, promptTokens: number, acceptance: Acceptance): void {
    const { decision, inlineTokens } = acceptance;
    const { instance, decodeAt } = acceptance.route;
    const { predicted } = acceptance.verdict;
    for (const leg of legsOf(acceptance.route)) this.#instances[leg].requests++;
    const placed = this.#placer.place(nowUs, request, promptTokens, decision);
    const member = predicted === undefined && inlineTokens === 0 ? decodeAt : this.#decoderOf(acceptance.route);
    const joinsUs = nowUs + (predicted?.ttftUs ?? 0);
    const decoding = member === undefined ? undefined : this.#gate.add(nowUs, request, member, promptTokens, joinsUs);
    this.#requests.set(request.id, { instance, decodeAt, placed, decoding, inlineTokens, stage: 'queued' });
    if (inlineTokens > 0) {
      this.#inlinePrefills++;
      this.#gate.inlined(instance, inlineTokens);
    }
    this.#effects.push({ kind: 'forward', request, instance, decodeAt, predicted, prefix: fetchOf(decision) });
  }

  /** The prompt is short enough to be computed where it decodes. */
  #inline(nowUs: number, request: Request, { promptTokens, outputTokensMax }: RequestSize): Inline | undefined {
    if (outputTokensMax <= 1) return undefined;
    const choice = this.#gate.chooseInline(nowUs, request, promptTokens, (i) => this.#placer.cachedTokens(i));
    if (choice === undefined) return undefined;
    return {
      ...nothingFetched,
      instance: choice.member,
      tokens: promptTokens - choice.cachedTokens,
      queueUs: choice.waitUs,
      prefillUs: choice.stepUs,
    };
  }

  #inlineDone(tracked: Tracked): void {
    if (tracked.inlineTokens > 0) this.#gate.inlineDone(tracked.instance, tracked.inlineTokens);
    tracked.inlineTokens = 0;
  }

  /** The refusal that a request would meet now, were `ahead` others taken before it; undefined while there is room. */
  overload(nowUs: number, ahead: number): Refusal | undefined {
    const accepted = this.#requests.size + ahead;
    if (accepted < this.#queueMax) return undefined;
    return overloaded(accepted, this.#queueMax, this.#throughput.retryAfterMs(nowUs, accepted));
  }

  #refuse(nowUs: number, size: RequestSize, route: Route | undefined): Refusal | undefined {
    if (this.#draining) return refusal('SHUTTING_DOWN', 'Cannot admit request: the server is shutting down');
    if (route === undefined) return refusal('ENGINE_FAILED', 'Cannot admit request: no instance is left to serve it');
    const capacityTokens = Math.min(...legsOf(route).map((leg) => this.#instances[leg].capacityTokens));
    return tooLong(size, capacityTokens) ?? this.overload(nowUs, 0);
  }

  #decoderOf({ instance, decodeAt }: Route): InstanceIndex | undefined {
    return decodeAt ?? (this.#instances[instance].role === 'prefill' ? undefined : instance);
  }

  /** One token of output comes with the prompt: nobody has to decode. */
  #route(instance: InstanceIndex | undefined, { promptTokens, outputTokensMax }: RequestSize): Route | undefined {
    if (instance === undefined) return undefined;
    if (this.#instances[instance].role === 'mixed' || outputTokensMax <= 1) return { instance, decodeAt: undefined };
    const decodeAt = this.#gate.choose(promptTokens);
    return decodeAt === undefined ? undefined : { instance, decodeAt };
  }

  #cancel(id: RequestId): void {
    const tracked = this.#requests.get(id);
    if (tracked === undefined) {
      this.#effects.push({ kind: 'ignored', message: `Ignored cancel: request ${id} is not live` });
      return;
    }
    const view = this.#instances[tracked.instance];
    if (tracked.decodeAt !== undefined)
      this.#effects.push({ kind: 'cancel', instance: tracked.decodeAt, id, interrupt: false });
    const interrupt = tracked.stage === 'prefill' && (view.progressed || view.requests === 1);
    if (interrupt) view.progressed = false;
    this.#effects.push({ kind: 'cancel', instance: tracked.instance, id, interrupt });
    this.#forget(id, tracked);
  }

  #hear(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    const tracked = this.#requests.get(id);
    // Words about a request that was cancelled may still be under way: nothing is wrong.
    if (tracked === undefined || !legsOf(tracked).includes(instance) || event.kind === 'accepted') return;
    this.#effects.push({ kind: 'emit', id, event });
    switch (event.kind) {
      case 'started':
        tracked.stage = 'prefill';
        this.#placer.started(tracked.placed, event.cachedTokens);
        break;
      case 'prompt-logprobs':
        this.#instances[instance].progressed = true;
        break;
      case 'tokens':
        tracked.stage = 'decode';
        this.#placer.prefilled(nowUs, tracked.placed);
        this.#inlineDone(tracked);
        if (tracked.decoding !== undefined) this.#gate.joined(nowUs, tracked.decoding);
        this.#instances[instance].progressed = true;
        break;
      case 'finished':
      case 'failed':
        this.#throughput.ended(nowUs);
        this.#forget(id, tracked);
        break;
    }
  }

  /** What the prompt's instance still has of it is only a copy under way. */
  #prefilled(nowUs: number, instance: InstanceIndex, id: RequestId): void {
    const tracked = this.#requests.get(id);
    if (tracked?.instance !== instance || tracked.stage === 'decode') return;
    tracked.stage = 'decode';
    this.#placer.prefilled(nowUs, tracked.placed);
    this.#instances[instance].progressed = true;
  }

  #lose(instance: InstanceIndex): void {
    const view = this.#instances[instance];
    if (view === undefined || view.lost) {
      this.#effects.push({
        kind: 'ignored',
        message: `Ignored instanceLost: instance ${instance} is unknown or lost already`,
      });
      return;
    }
    view.lost = true;
    this.#placer.lost(instance);
    this.#gate.lost(instance);
    for (const [id, tracked] of [...this.#requests]) {
      if (!legsOf(tracked).includes(instance)) continue;
      for (const leg of legsOf(tracked))
        if (leg !== instance) this.#effects.push({ kind: 'cancel', instance: leg, id, interrupt: false });
      this.#effects.push({
        kind: 'emit',
        id,
        event: refusal('ENGINE_FAILED', 'Cannot generate: the instance stopped'),
      });
      this.#forget(id, tracked);
    }
  }

  #forget(id: RequestId, tracked: Tracked): void {
    for (const leg of legsOf(tracked)) this.#instances[leg].requests--;
    this.#placer.ended(tracked.placed);
    this.#inlineDone(tracked);
    if (tracked.decoding !== undefined) this.#gate.ended(tracked.decoding);
    this.#requests.delete(id);
    this.#sayDrained();
  }

  #sayDrained(): void {
    if (this.#draining && this.#requests.size === 0) this.#effects.push({ kind: 'drained' });
  }

  /** Throws unless every request is counted at its instance, and none at a lost one. */
  check(): void {
    const counts = this.#instances.map(() => 0);
    const inlineTokens = new Float64Array(this.#instances.length);
    for (const tracked of this.#requests.values()) {
      for (const leg of legsOf(tracked)) counts[leg]++;
      inlineTokens[tracked.instance] += tracked.inlineTokens;
    }
    this.#placer.check();
    this.#gate.check(inlineTokens);
    const wrong = this.#instances.findIndex((view, i) => view.requests !== counts[i] || (view.lost && counts[i] > 0));
    if (wrong >= 0) {
      throw new Error(
        `Conductor broken: instance ${wrong} has ${counts[wrong]} requests, counted ${this.#instances[wrong].requests}`,
      );
    }
  }
}

function legsOf({ instance, decodeAt }: Route): readonly InstanceIndex[] {
  return decodeAt === undefined ? [instance] : [instance, decodeAt];
}

function refusal(code: Refusal['code'], message: string): Refusal {
  return { kind: 'failed', code, message, retryAfterMs: undefined };
}
