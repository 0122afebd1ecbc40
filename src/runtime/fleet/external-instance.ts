// One data-parallel rank of an external engine as an instance: requests as streams over HTTP, its blocks from KV events.
import { EngineBlocks, type EngineBlocksConfig } from '../../core/fleet/engine-blocks.ts';
import type { EngineKvBatch, EngineKvEvent } from '../../core/fleet/engine-kv-event.ts';
import { type EngineLoad, OthersLoad } from '../../core/fleet/engine-load.ts';
import type { EngineSnapshot, SequencePosition } from '../../core/fleet/event-sequence.ts';
import { StreamCosts } from '../../core/fleet/stream-costs.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { PlacedLoad } from '../../core/protocol/instance-report.ts';
import type { KvEventBatch, KvSnapshot } from '../../core/protocol/kv-events.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot, TokenLogprobs } from '../../core/protocol/ports.ts';
import type { FailureCode } from '../../core/protocol/refusal-cause.ts';
import { type Refusal, retryAfterMsMin } from '../../core/protocol/refusals.ts';
import { SlotMap } from '../../util/slot-map.ts';
import { emptySnapshot } from '../snapshots/metric-snapshots.ts';
import { nowUs } from '../threads/alarm.ts';
import type { EngineDescription, EngineDialect, KvEventSource, StreamPiece, StreamReader } from './engine-dialect.ts';
import type { EngineAnswer, EngineHttp, PostHandler } from './engine-http.ts';
import { type AskedSnapshot, KvEventSubscriber } from './kv-event-subscriber.ts';
import { reasonOf, statedReason } from './reason-of.ts';

export interface ExternalInstanceOptions {
  readonly http: EngineHttp;
  readonly dialect: EngineDialect;
  readonly description: EngineDescription;
  /** The model's name at the engine. */
  readonly model: string;
  /** Position of its data-parallel rank; requests name it if there are several. */
  readonly rank: number;
  readonly blocks: EngineBlocksConfig;
  /** Of at most `blocksMax` blocks. Undefined: there is no other gateway. */
  readonly requestSnapshot?:
    | ((asked: AskedSnapshot & { readonly blocksMax: number }) => Promise<EngineSnapshot | undefined>)
    | undefined;
  readonly listener: ExternalInstanceListener;
}

export interface ExternalInstanceListener {
  onEvents(events: readonly (readonly [id: RequestId, event: GenerationEvent])[]): void;
  onKvEvents(batch: KvEventBatch): void;
  /** A stream broke, and the engine may be gone. */
  onBroken(id: RequestId, why: string): void;
  /** The engine is up and will not serve the request: another one may. @param refusal it is too loaded to try again */
  onReleased(id: RequestId, why: string, refusal?: Refusal): void;
  log(message: string): void;
}

interface EngineCall {
  readonly request: GenerationRequest;
  /** Prompt tokens that the engine's KV events promise; used where it states none. */
  readonly cachedTokens: number;
  readonly reader: StreamReader;
  abort: () => void;
  hasStarted: boolean;
  hasFinished: boolean;
  /** Tokens received. */
  outputs: number;
  /** Closes the stream after its last token. */
  closeTimer?: NodeJS.Timeout;
  /** Of the forward, or of the last tokens. */
  lastUs: number;
}

/** Statuses after which another engine may serve the request: among them answers that are no errors and no streams. */
const isTransient = (status: number): boolean =>
  status < 400 || status === 404 || status === 408 || status === 429 || status >= 500;
const isOverload = (status: number): boolean => status === 429 || status === 503;
const isUnsupported = (status: number): boolean => status === 400 || status === 413 || status === 422;

/** A stream that the engine does not end so long after its last token is closed. */
const finishedMsMax = 5_000;
/** A stream that has started and has had no token for so long is released. */
const stallUsMax = 120_000_000;
/** Blocks of which an engine may report this multiple of its stated capacity, below device memory too; and without it. */
const blocksMax = { perCapacity: 64, least: 2 ** 16, unstated: 2 ** 22 };

export class ExternalInstance {
  readonly #options: ExternalInstanceOptions;
  readonly #blocks: EngineBlocks;
  readonly #subscriber: KvEventSubscriber | undefined;
  readonly #costs = new StreamCosts();
  readonly #calls = new SlotMap<RequestId, EngineCall>();
  readonly #counts = { promptTokens: 0, cachedTokens: 0, generatedTokens: 0, evictedBlocks: 0 };
  readonly #others: OthersLoad;
  #load: EngineLoad = { running: 0, waiting: 0, usage: 0 };
  #progressUs = nowUs();

  constructor(options: ExternalInstanceOptions) {
    this.#options = options;
    this.#others = new OthersLoad(options.description.capacityTokens ?? 0);
    this.#blocks = new EngineBlocks({ ...options.blocks, blocksMax: blocksMaxOf(options.description) });
    const source = options.description.sources[options.rank];
    this.#subscriber = source && this.#subscribe(source);
  }

  /** Undefined: the addresses are unusable. */
  #subscribe(source: KvEventSource): KvEventSubscriber | undefined {
    const { listener, requestSnapshot, description } = this.#options;
    const blocksMax = blocksMaxOf(description);
    const reset = (why: string): void => {
      listener.log(`KV events of ${source.endpoint} ${why}: its blocks are learned anew`);
      this.#blocks.clear();
      this.#reportChanges();
    };
    const apply = (events: readonly EngineKvEvent[]): void => {
      if (this.#blocks.apply(events)) this.#reportChanges();
      else reset('exceed its memory');
    };
    const handler = {
      apply: ({ events }: EngineKvBatch): void => apply(events),
      reset: () => reset('are lost'),
      adopt: ({ events }: EngineSnapshot): void => {
        this.#blocks.clear();
        apply(events);
        listener.log(`KV events of ${source.endpoint} continue after ${this.#blocks.size} blocks of another gateway`);
      },
      log: (message: string): void => listener.log(message),
    };
    try {
      return new KvEventSubscriber(
        source,
        handler,
        requestSnapshot && ((asked) => requestSnapshot({ ...asked, blocksMax })),
      );
    } catch (error) {
      listener.log(`KV events of ${source.endpoint} are not used: ${reasonOf(error)}`);
      return undefined;
    }
  }

  get hasKvEvents(): boolean {
    return this.#subscriber !== undefined;
  }

  /** Time since which requests run and none has advanced; undefined: none runs. */
  get stalledSinceUs(): number | undefined {
    return this.#calls.size === 0 ? undefined : this.#progressUs;
  }

  /**
   * @param cachedTokens leading tokens of the prompt that the engine's KV events report
   * @param extra fields of the call
   */
  submit(request: GenerationRequest, cachedTokens: number, extra?: Readonly<Record<string, unknown>>): void {
    const { listener } = this.#options;
    const { id } = request;
    this.#call(request, cachedTokens, extra, (call) => ({
      onEvents: (data) => this.#receive(call, data),
      onAnswer: (answer) => this.#refused(call, answer),
      onEnd: (why) => {
        clearTimeout(call.closeTimer);
        if (call.hasFinished || !this.#end(call)) return;
        listener.onBroken(id, why ?? 'the stream ended without a reason');
      },
    }));
  }

  /**
   * Computes the prompt for another engine. `done` receives the answer; its status is not 200 if the engine refused,
   * and it is undefined if the answer broke.
   */
  prefill(
    request: GenerationRequest,
    cachedTokens: number,
    extra: Readonly<Record<string, unknown>>,
    done: (answer: EngineAnswer | undefined) => void,
  ): void {
    const { id } = request;
    this.#call(request, cachedTokens, extra, (call) => ({
      onEvents: () => {},
      onAnswer: (answer) => {
        this.#progressUs = nowUs();
        const prefillUs = this.#costs.received(this.#progressUs, id, 1);
        if (!this.#end(call)) return;
        if (answer.status === 200) this.#options.listener.onEvents([[id, this.#started(call, undefined, prefillUs)]]);
        done(answer);
      },
      onEnd: () => void (this.#end(call) && done(undefined)),
    }));
  }

  #call(
    request: GenerationRequest,
    cachedTokens: number,
    extra: Readonly<Record<string, unknown>> | undefined,
    handlerOf: (call: EngineCall) => PostHandler,
  ): void {
    const { http, dialect, model, rank, description } = this.#options;
    const ranked = description.sources.length > 1 ? rank : undefined;
    const target = { model, rank: ranked, priority: priorityAt(description, request) };
    const { headers, body } = dialect.encode(request, target, extra);
    if (this.#calls.size === 0) this.#progressUs = nowUs();
    this.#costs.forwarded(nowUs(), request.id, request.prompt.length + (request.resumed?.tokens.length ?? 0));
    const call: EngineCall = {
      ...{ request, cachedTokens, reader: dialect.reader(request), abort: () => {} },
      ...{ hasStarted: false, hasFinished: false, outputs: 0, lastUs: nowUs() },
    };
    this.#calls.set(request.id, call);
    this.#others.callBegan(this.#calls.size);
    call.abort = http.post(dialect.path, headers, body, handlerOf(call));
  }

  /** Closes the stream, upon which the engine aborts the request. */
  cancel(id: RequestId): void {
    const call = this.#calls.get(id);
    if (call === undefined) return;
    this.#end(call);
    call.abort();
  }

  /** Releases the streams that have started, and have had no token for too long. */
  releaseStalled(atUs: number): void {
    for (const call of [...this.#calls.values()]) {
      if (!call.hasStarted || atUs - call.lastUs <= stallUsMax) continue;
      this.#end(call);
      call.abort();
      this.#options.listener.onReleased(call.request.id, `no token has arrived for ${stallUsMax / 1e6} s`);
    }
  }

  /** Takes what the engine reports. Returns the load of other gateways and clients in it. */
  observe(load: EngineLoad): PlacedLoad {
    this.#load = load;
    const own = { calls: this.#calls.size, unstarted: 0, startedTokens: 0, promptTokens: 0 };
    for (const { request, hasStarted, outputs } of this.#calls.values()) {
      const promptTokens = request.prompt.length + (request.resumed?.tokens.length ?? 0);
      own.promptTokens += promptTokens;
      if (hasStarted) own.startedTokens += promptTokens + outputs;
      else own.unstarted++;
    }
    return this.#others.othersIn(load, own);
  }

  /**
   * What another gateway needs to follow the KV events from here on; undefined: batches are missing, or none has arrived.
   * Requires blocks with tokens.
   */
  engineSnapshot(): (SequencePosition & { readonly events: Iterable<EngineKvEvent> }) | undefined {
    const position = this.#subscriber?.position;
    return position && { ...position, events: this.#blocks.storedEvents() };
  }

  /** All blocks that are known; batches continue after it. */
  kvSnapshot(): KvSnapshot {
    return this.#blocks.snapshot();
  }

  snapshot(): InstanceSnapshot {
    const { description, dialect } = this.#options;
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
      running: this.#calls.size,
      pages: { total, used, cached, free: total - used - cached },
      blocks: { total, tokens: blockTokens },
      engine: { kind: dialect.kind, takesPriorities: description.takesPriorities },
      computedPromptTokens: promptTokens - cachedTokens,
      ...(this.#costs.steps.observed > 0 && { stepCost: this.#costs.steps.coefficients }),
    };
  }

  /** Requests under way: they get no more events. */
  close(): void {
    this.#subscriber?.close();
    for (const call of [...this.#calls.values()]) {
      this.#end(call);
      call.abort();
    }
  }

  #receive(call: EngineCall, data: readonly string[]): void {
    const { id } = call.request;
    if (this.#calls.get(id) !== call) return;
    const events: (readonly [RequestId, GenerationEvent])[] = [];
    try {
      for (const each of data) events.push(...this.#eventsOf(call, each).map((event) => [id, event] as const));
    } catch (error) {
      if (!this.#end(call)) return;
      call.abort();
      this.#options.listener.onReleased(id, reasonOf(error));
      return;
    }
    if (events.length > 0) this.#options.listener.onEvents(events);
  }

  #eventsOf(call: EngineCall, data: string): readonly GenerationEvent[] {
    const piece = call.hasFinished ? undefined : call.reader.read(data);
    if (piece === undefined) return [];
    const { request } = call;
    const { tokens, text, logprobs, finished } = withinLimit(piece, request, call.outputs);
    const events: GenerationEvent[] = [];
    // SGLang may send the rest of a text behind its tokens.
    const isTextAlone = tokens.length === 0 && text !== '' && call.hasStarted;
    if (isTextAlone && request.engineText !== undefined) events.push({ kind: 'tokens', tokens, logprobs, text });
    if (tokens.length > 0) {
      this.#progressUs = nowUs();
      call.lastUs = this.#progressUs;
      const prefillUs = this.#costs.received(this.#progressUs, request.id, tokens.length);
      if (!call.hasStarted) events.push(this.#started(call, piece.cachedTokens, prefillUs));
      call.outputs += tokens.length;
      this.#counts.generatedTokens += tokens.length;
      events.push({ kind: 'tokens', tokens, logprobs, ...(request.engineText !== undefined && { text }) });
    }
    if (finished === undefined) return events;
    if (finished === 'abort') throw new Error('the engine has aborted the request');
    call.hasFinished = true;
    this.#end(call);
    call.closeTimer = setTimeout(() => call.abort(), finishedMsMax);
    call.closeTimer.unref();
    return [...events, { kind: 'finished', reason: finished }];
  }

  /** The prefill of a request has ended: the engine does not report its start. */
  #started(call: EngineCall, stated = call.cachedTokens, prefillUs = 0): GenerationEvent {
    call.hasStarted = true;
    const { prompt, resumed } = call.request;
    const promptTokens = prompt.length + (resumed?.tokens.length ?? 0);
    const cachedTokens = Math.min(stated, promptTokens);
    this.#counts.promptTokens += promptTokens;
    this.#counts.cachedTokens += cachedTokens;
    return { kind: 'started', cachedTokens, prefillUs };
  }

  #refused(call: EngineCall, answer: EngineAnswer): void {
    if (!this.#end(call)) return;
    this.#progressUs = nowUs();
    const { listener } = this.#options;
    const { id } = call.request;
    const { status } = answer;
    const why = whyRefused(answer);
    if (isTransient(status)) listener.onReleased(id, why, refusalOf(answer));
    else listener.onEvents([[id, failure(why, isUnsupported(status) ? 'UNSUPPORTED_REQUEST' : 'ENGINE_FAILED')]]);
  }

  /** False: the call has ended before. */
  #end({ request: { id } }: EngineCall): boolean {
    this.#costs.ended(nowUs(), id);
    return this.#calls.delete(id);
  }

  #reportChanges(): void {
    const batch = this.#blocks.takeBatch();
    if (batch !== undefined) this.#options.listener.onKvEvents(batch);
  }
}

/** Tokens beyond those that the request may have are left out, and end it. @param outputs tokens of the call so far */
function withinLimit(piece: StreamPiece, { maxTokens, resumed }: GenerationRequest, outputs: number): StreamPiece {
  const left = maxTokens - (resumed?.tokens.length ?? 0) - outputs;
  const { tokens, text, logprobs } = piece;
  if (tokens.length <= left) return piece;
  return {
    ...piece,
    tokens: tokens.subarray(0, left),
    // That of some of its tokens is not known.
    text: left === 0 ? '' : text,
    logprobs: logprobs && firstOf(logprobs, left),
    finished: 'length',
  };
}

function firstOf({ logprobs, width, topTokens, topLogprobs }: TokenLogprobs, tokens: number): TokenLogprobs {
  return {
    logprobs: logprobs.subarray(0, tokens),
    width,
    topTokens: topTokens.subarray(0, tokens * width),
    topLogprobs: topLogprobs.subarray(0, tokens * width),
  };
}

/** Undefined: the engine takes no priorities. */
function priorityAt(
  { takesPriorities, priorityOrder }: EngineDescription,
  { priority }: GenerationRequest,
): number | undefined {
  if (!takesPriorities) return undefined;
  return priorityOrder === 'largest-first' || priority === 0 ? priority : -priority;
}

export function whyRefused({ status, body }: EngineAnswer): string {
  return `the engine answers ${status}: ${statedReason(body)}`;
}

/** The refusal of an engine that is too loaded; undefined: it answers something else. */
export function refusalOf(answer: EngineAnswer): Refusal | undefined {
  return isOverload(answer.status) ? overloadRefusal(whyRefused(answer)) : undefined;
}

export function overloadRefusal(why: string): Refusal {
  return failure(why, 'KV_OVERLOADED', retryAfterMsMin);
}

/** The refusal of an engine that accepts no connection. */
export function refusedConnection(why: string): Refusal {
  return failure(why, 'ENGINE_FAILED');
}

/** The failure of a request that engines do not compute here; undefined: they do. */
export function unsupportedFailure({
  pooling,
  maxTokens,
  sampling,
  kvBudget,
}: GenerationRequest): GenerationEvent | undefined {
  const refused = (why: string): GenerationEvent => failure(`engines of a fleet ${why}`, 'UNSUPPORTED_REQUEST');
  if (pooling !== undefined) return refused('yield no embeddings here');
  if (maxTokens === 0) return refused('do not only score prompts');
  if (sampling.promptLogprobs) return refused('report no log-probabilities of prompts');
  return kvBudget === undefined || kvBudget === 'full' ? undefined : refused('have no KV budget');
}

function failure(why: string, code: FailureCode, retryAfterMs?: number): Refusal {
  return { kind: 'failed', code, message: `Cannot generate: ${why}`, retryAfterMs };
}

function blocksMaxOf({ capacityTokens, blockTokens }: EngineDescription): number {
  if (capacityTokens === undefined || blockTokens === undefined) return blocksMax.unstated;
  return Math.max(blocksMax.least, (blocksMax.perCapacity * capacityTokens) / blockTokens);
}
