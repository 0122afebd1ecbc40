// One data-parallel rank of an external engine as an instance: requests as streams over HTTP, its blocks from KV events.
import { EngineBlocks, type EngineBlocksConfig } from '../../core/fleet/engine-blocks.ts';
import { StreamCosts } from '../../core/fleet/stream-costs.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { KvEventBatch, KvSnapshot } from '../../core/protocol/kv-events.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { FailureCode } from '../../core/protocol/refusal-cause.ts';
import { oneLine } from '../../util/one-line.ts';
import { emptySnapshot } from '../snapshots/metric-snapshots.ts';
import { nowUs } from '../threads/alarm.ts';
import type { EngineDescription, EngineDialect, EngineLoad, StreamReader } from './engine-dialect.ts';
import type { EngineAnswer, EngineHttp, PostHandler } from './engine-http.ts';
import { KvEventSubscriber } from './kv-event-subscriber.ts';

export interface ExternalInstanceOptions {
  readonly http: EngineHttp;
  readonly dialect: EngineDialect;
  readonly description: EngineDescription;
  /** The model's name at the engine. */
  readonly model: string;
  /** Position of its data-parallel rank; requests name it if there are several. */
  readonly rank: number;
  readonly blocks: EngineBlocksConfig;
  readonly listener: ExternalInstanceListener;
}

export interface ExternalInstanceListener {
  onEvents(events: readonly (readonly [id: RequestId, event: GenerationEvent])[]): void;
  onKvEvents(batch: KvEventBatch): void;
  /** A stream broke, and the engine may be gone. */
  onBroken(id: RequestId, why: string): void;
  /** The engine is up and will not serve the request: another one may. */
  onReleased(id: RequestId, why: string): void;
  log(message: string): void;
}

interface Leg {
  readonly request: GenerationRequest;
  /** Prompt tokens that the engine's KV events promise; used where it states none. */
  readonly cachedTokens: number;
  readonly reader: StreamReader;
  abort: () => void;
  hasStarted: boolean;
  hasFinished: boolean;
}

const reasonCharactersMax = 300;

/** Statuses after which another engine may serve the request. */
const isTransient = (status: number): boolean => status === 429 || status === 404 || status >= 500;

export class ExternalInstance {
  readonly #options: ExternalInstanceOptions;
  readonly #blocks: EngineBlocks;
  readonly #subscriber: KvEventSubscriber | undefined;
  readonly #costs = new StreamCosts();
  readonly #legs = new Map<RequestId, Leg>();
  readonly #counts = { promptTokens: 0, cachedTokens: 0, generatedTokens: 0, evictedBlocks: 0 };
  #load: EngineLoad = { running: 0, waiting: 0, usage: 0 };
  #progressUs = nowUs();

  constructor(options: ExternalInstanceOptions) {
    this.#options = options;
    this.#blocks = new EngineBlocks(options.blocks);
    const source = options.description.sources[options.rank];
    this.#subscriber =
      source &&
      new KvEventSubscriber(source, {
        apply: ({ events }) => {
          this.#blocks.apply(events);
          this.#reportChanges();
        },
        forget: () => {
          options.listener.log(`KV events of ${source.endpoint} are lost: its blocks are learned anew`);
          this.#blocks.clear();
          this.#reportChanges();
        },
        log: (message) => options.listener.log(message),
      });
  }

  /** Time since which streams run and none has advanced; undefined: none runs. */
  get stalledSinceUs(): number | undefined {
    return this.#legs.size === 0 ? undefined : this.#progressUs;
  }

  /**
   * @param cachedTokens leading tokens of the prompt that the engine's KV events report
   * @param extra fields of the call
   */
  submit(request: GenerationRequest, cachedTokens: number, extra?: Readonly<Record<string, unknown>>): void {
    const { listener } = this.#options;
    const refused = unsupported(request);
    if (refused !== undefined) {
      queueMicrotask(() => listener.onEvents([[request.id, failure(refused)]]));
      return;
    }
    const { id } = request;
    this.#call(request, cachedTokens, extra, (leg) => ({
      onEvents: (data) => this.#receive(leg, data),
      onAnswer: (answer) => this.#refused(leg, answer),
      onEnd: (why) => {
        if (leg.hasFinished || !this.#end(leg)) return;
        listener.onBroken(id, why ?? 'the stream ended without a reason');
      },
    }));
  }

  /**
   * Computes the prompt for another engine. `done` receives the body of the answer; undefined: the engine refused, or
   * its answer broke.
   */
  prefill(
    request: GenerationRequest,
    cachedTokens: number,
    extra: Readonly<Record<string, unknown>>,
    done: (body: string | undefined) => void,
  ): void {
    const { id } = request;
    this.#call(request, cachedTokens, extra, (leg) => ({
      onEvents: () => {},
      onAnswer: ({ status, body }) => {
        const prefillUs = this.#costs.received(nowUs(), id, 1);
        if (!this.#end(leg)) return;
        if (status === 200) this.#options.listener.onEvents([[id, this.#started(leg, undefined, prefillUs)]]);
        done(status === 200 ? body : undefined);
      },
      onEnd: () => void (this.#end(leg) && done(undefined)),
    }));
  }

  #call(
    request: GenerationRequest,
    cachedTokens: number,
    extra: Readonly<Record<string, unknown>> | undefined,
    handlerOf: (leg: Leg) => PostHandler,
  ): void {
    const { http, dialect, model, rank, description } = this.#options;
    const ranked = description.sources.length > 1 ? rank : undefined;
    const { headers, body } = dialect.encode(request, model, ranked, extra);
    if (this.#legs.size === 0) this.#progressUs = nowUs();
    this.#costs.forwarded(nowUs(), request.id, request.prompt.length + (request.resumed?.tokens.length ?? 0));
    const leg: Leg = {
      ...{ request, cachedTokens, reader: dialect.reader(request), abort: () => {} },
      ...{ hasStarted: false, hasFinished: false },
    };
    this.#legs.set(request.id, leg);
    leg.abort = http.post(dialect.path, headers, body, handlerOf(leg));
  }

  /** Closes the stream, upon which the engine aborts the request. */
  cancel(id: RequestId): void {
    const leg = this.#legs.get(id);
    if (leg === undefined) return;
    this.#end(leg);
    leg.abort();
  }

  observe(load: EngineLoad): void {
    this.#load = load;
  }

  /** All blocks that are known; batches continue after it. */
  kvSnapshot(): KvSnapshot {
    return this.#blocks.snapshot();
  }

  snapshot(): InstanceSnapshot {
    const { description } = this.#options;
    const { capacityTokens = 0, blockTokens = 1 } = description;
    const total = Math.floor(capacityTokens / blockTokens);
    const used = Math.min(total, Math.round(this.#load.usage * total));
    const cached = Math.min(total - used, Math.floor(this.#blocks.deviceTokens / blockTokens));
    const { promptTokens, cachedTokens } = this.#counts;
    return {
      ...emptySnapshot,
      ...this.#counts,
      ready: true,
      waiting: Math.max(this.#load.waiting, 0),
      running: this.#legs.size,
      pages: { total, used, cached, free: total - used - cached },
      blocks: { total, tokens: blockTokens },
      computedPromptTokens: promptTokens - cachedTokens,
      ...(this.#costs.steps.observed > 0 && { stepCost: this.#costs.steps.coefficients }),
    };
  }

  /** Requests under way: they get no more events. */
  close(): void {
    this.#subscriber?.close();
    for (const leg of [...this.#legs.values()]) {
      this.#end(leg);
      leg.abort();
    }
  }

  #receive(leg: Leg, data: readonly string[]): void {
    const { id } = leg.request;
    if (this.#legs.get(id) !== leg) return;
    const events: (readonly [RequestId, GenerationEvent])[] = [];
    try {
      for (const each of data) events.push(...this.#eventsOf(leg, each).map((event) => [id, event] as const));
    } catch (error) {
      if (!this.#end(leg)) return;
      leg.abort();
      this.#options.listener.onReleased(
        id,
        oneLine(error instanceof Error ? error.message : String(error), reasonCharactersMax),
      );
      return;
    }
    if (events.length > 0) this.#options.listener.onEvents(events);
  }

  #eventsOf(leg: Leg, data: string): readonly GenerationEvent[] {
    const piece = leg.hasFinished ? undefined : leg.reader.read(data);
    if (piece === undefined) return [];
    const { request } = leg;
    const { tokens, logprobs, finished } = piece;
    const events: GenerationEvent[] = [];
    if (tokens.length > 0) {
      this.#progressUs = nowUs();
      const prefillUs = this.#costs.received(this.#progressUs, request.id, tokens.length);
      if (!leg.hasStarted) events.push(this.#started(leg, piece.cachedTokens, prefillUs));
      this.#counts.generatedTokens += tokens.length;
      events.push({ kind: 'tokens', tokens, logprobs });
    }
    if (finished === undefined) return events;
    if (finished === 'abort') throw new Error('the engine gave the request up');
    leg.hasFinished = true;
    this.#end(leg);
    return [...events, { kind: 'finished', reason: finished }];
  }

  /** The prefill of a request has ended: the engine does not report its start. */
  #started(leg: Leg, stated = leg.cachedTokens, prefillUs = 0): GenerationEvent {
    leg.hasStarted = true;
    const { prompt, resumed } = leg.request;
    const promptTokens = prompt.length + (resumed?.tokens.length ?? 0);
    const cachedTokens = Math.min(stated, promptTokens);
    this.#counts.promptTokens += promptTokens;
    this.#counts.cachedTokens += cachedTokens;
    return { kind: 'started', cachedTokens, prefillUs };
  }

  #refused(leg: Leg, { status, body }: EngineAnswer): void {
    if (!this.#end(leg)) return;
    const { id } = leg.request;
    const why = `the engine answers ${status}: ${reasonIn(body)}`;
    if (isTransient(status)) this.#options.listener.onReleased(id, why);
    else this.#options.listener.onEvents([[id, failure(why)]]);
  }

  /** False: the leg has ended before. */
  #end({ request: { id } }: Leg): boolean {
    this.#costs.ended(nowUs(), id);
    return this.#legs.delete(id);
  }

  #reportChanges(): void {
    const batch = this.#blocks.takeBatch();
    if (batch !== undefined) this.#options.listener.onKvEvents(batch);
  }
}

/** What engines do not compute for us, with the reason. */
function unsupported({ pooling, maxTokens, sampling, kvBudget }: GenerationRequest): string | undefined {
  if (pooling !== undefined) return 'engines of a fleet yield no embeddings here';
  if (maxTokens === 0) return 'engines of a fleet do not only score prompts';
  if (sampling.promptLogprobs) return 'engines of a fleet report no log-probabilities of prompts';
  return kvBudget === undefined || kvBudget === 'full' ? undefined : 'engines of a fleet have no KV budget';
}

function failure(why: string): GenerationEvent {
  const code: FailureCode = 'ENGINE_FAILED';
  return { kind: 'failed', code, message: `Cannot generate: ${why}`, retryAfterMs: undefined };
}

function reasonIn(body: string): string {
  const match = /"message"\s*:\s*"((?:[^"\\]|\\.){1,300})/.exec(body);
  return oneLine(match?.[1] ?? body, reasonCharactersMax);
}
