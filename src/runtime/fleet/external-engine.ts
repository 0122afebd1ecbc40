// An external engine by its URL: what it is, whether it is healthy, how loaded, and its data-parallel ranks as instances.
import type { EngineLoad } from '../../core/fleet/engine-load.ts';
import type { EngineKind } from '../../core/protocol/instance-report.ts';
import {
  atRank,
  type EngineDescription,
  type EngineDialect,
  type EngineRole,
  type KvEventSource,
  type LoadSource,
  readLoads,
} from './engine-dialect.ts';
import { EngineHttp } from './engine-http.ts';
import { LoadSubscriber } from './load-subscriber.ts';
import { reasonOf } from './reason-of.ts';
import { sglangDialect } from './sglang-dialect.ts';
import { mooncakeHandOff, vllmDialect } from './vllm-dialect.ts';

export interface ExternalEngineOptions {
  readonly url: string;
  /** Undefined: read from the engine. */
  readonly kind?: EngineKind | undefined;
  /** In place of what the engine states; `off`: its KV events are not used. */
  readonly kvEvents?: KvEventSource | 'off' | undefined;
  /** Of SGLang, in place of what the engine states; `off`: its load is polled. */
  readonly load?: LoadSource | 'off' | undefined;
  readonly apiKey?: string | undefined;
  /** In place of what the engine states; mixed unless either is given. */
  readonly role?: EngineRole | undefined;
  /** Of the bootstrap server of a prefill engine: vLLM with MooncakeConnector. */
  readonly bootstrap?: string | undefined;
  /** In place of what the engine states: it schedules by the priority of requests. */
  readonly priorityScheduling?: boolean | undefined;
}

export interface ExternalEngineListener {
  /** The engine answers, for the first time or again. Throws if it does not fit into the fleet. */
  onUp(engine: ExternalEngine, dialect: EngineDialect, description: EngineDescription): void;
  /** The engine does not answer any more. */
  onDown(engine: ExternalEngine, why: string): void;
  /** The engine is healthy. */
  onPolled(engine: ExternalEngine): void;
  /** The engine has pushed the load of a rank, or it was polled. */
  onLoad(engine: ExternalEngine, rank: number, load: EngineLoad): void;
  log(message: string): void;
}

const healthTimeoutMs = 5_000;
const pollMs = 1_000;
/** Polls without an answer after which an engine that refuses no connection is down. */
const missedMax = 3;

const dialects: Readonly<Record<EngineKind, EngineDialect>> = { vllm: vllmDialect, sglang: sglangDialect };

export class ExternalEngine {
  readonly url: string;
  readonly http: EngineHttp;
  readonly #options: ExternalEngineOptions;
  readonly #listener: ExternalEngineListener;
  readonly #earlier: Promise<unknown> | undefined;
  /** The first attempt to reach it has ended. */
  readonly settled: Promise<void>;
  #dialect: EngineDialect | undefined;
  #ranks = 0;
  /** (ranks), of an engine that pushes its load. */
  #loadSubscribers: readonly (LoadSubscriber | undefined)[] = [];
  #missed = 0;
  #timer: NodeJS.Timeout | undefined;
  #reported: string | undefined;
  #isClosed = false;
  #isDraining = false;

  /** @param earlier it joins after that for the first time */
  constructor(options: ExternalEngineOptions, listener: ExternalEngineListener, earlier?: Promise<unknown>) {
    this.url = options.url;
    this.#options = options;
    this.#listener = listener;
    this.#earlier = earlier;
    this.http = new EngineHttp(options.url, options.apiKey);
    this.settled = this.#poll();
  }

  get isUp(): boolean {
    return this.#ranks > 0;
  }

  /** It gets no further requests: neither its health nor a broken stream fails those that it has. */
  get isDraining(): boolean {
    return this.#isDraining;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  drain(): void {
    this.#isDraining = true;
  }

  /** Why the engine is unhealthy; undefined: it answers. */
  async unhealthy(): Promise<string | undefined> {
    try {
      const { status } = await this.http.get('/health', healthTimeoutMs);
      return status === 200 ? undefined : `/health answers ${status}`;
    } catch (error) {
      return reasonOf(error);
    }
  }

  /** The engine does not serve: it joins again once it answers. */
  fail(why: string): void {
    if (!this.isUp) return;
    this.#ranks = 0;
    this.#missed = 0;
    this.#reported = why;
    this.#subscribeLoads(undefined);
    this.#listener.onDown(this, why);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#subscribeLoads(undefined);
    this.http.close();
  }

  async #poll(): Promise<void> {
    const startedMs = performance.now();
    if (this.isUp) await this.#observe();
    else await this.#join();
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => void this.#poll(), Math.max(0, pollMs - (performance.now() - startedMs)));
    this.#timer.unref();
  }

  async #join(): Promise<void> {
    try {
      const unhealthy = (await this.unhealthy()) ?? (await this.#unready());
      if (unhealthy !== undefined) throw new Error(unhealthy);
      const kind = this.#options.kind ?? (await this.#kind());
      const dialect = dialects[kind];
      const description = this.#asConfigured(kind, await dialect.describe(this.http));
      await this.#earlier;
      if (this.#isClosed) return;
      this.#listener.onUp(this, dialect, description);
      this.#dialect = dialect;
      this.#ranks = description.sources.length;
      this.#reported = undefined;
      this.#subscribeLoads(description);
    } catch (error) {
      const why = reasonOf(error);
      if (why !== this.#reported && !this.#isClosed)
        this.#listener.log(`Engine ${this.url} does not serve yet: ${why}`);
      this.#reported = why;
    }
  }

  /** A Kvasir is healthy before it serves. Engines without that address are ready. */
  async #unready(): Promise<string | undefined> {
    const { status } = await this.http.get('/ready', healthTimeoutMs);
    return status === 503 ? '/ready answers 503' : undefined;
  }

  /** SGLang describes itself at an address that vLLM does not have, or has in development mode with other contents. */
  async #kind(): Promise<EngineKind> {
    const { status, body } = await this.http.get('/server_info', healthTimeoutMs);
    return status === 200 && body.includes('"max_total_num_tokens"') ? 'sglang' : 'vllm';
  }

  #asConfigured(kind: EngineKind, stated: EngineDescription): EngineDescription {
    const { bootstrap, load } = this.#options;
    if (load !== undefined && load !== 'off' && kind !== 'sglang')
      throw new Error('load is of SGLang: that of vLLM is polled');
    if (bootstrap !== undefined && kind !== 'vllm') throw new Error('bootstrap is of vLLM: SGLang states its own');
    const description = {
      ...{ ...stated, handOff: bootstrap === undefined ? stated.handOff : mooncakeHandOff(bootstrap) },
      loads: load === undefined ? stated.loads : loadsAt(load, stated.sources.length),
    };
    const { kvEvents, role = description.role, priorityScheduling } = this.#options;
    const takesPriorities = priorityScheduling ?? description.takesPriorities;
    if (kvEvents === undefined) return { ...description, role, takesPriorities };
    const sources = description.sources.map((_, rank) => (kvEvents === 'off' ? undefined : atRank(kvEvents, rank)));
    return { ...description, role, takesPriorities, sources };
  }

  async #observe(): Promise<void> {
    if (this.#isDraining) {
      this.#listener.onPolled(this);
      return;
    }
    const unhealthy = await this.unhealthy();
    if (this.#isClosed || !this.isUp || this.#isDraining) return;
    if (unhealthy !== undefined) {
      this.#missed++;
      if (this.#missed >= missedMax || unhealthy === 'ECONNREFUSED') this.fail(unhealthy);
      return;
    }
    this.#missed = 0;
    await this.#pollLoads();
    if (!this.#isClosed && this.isUp) this.#listener.onPolled(this);
  }

  /** In place of earlier subscriptions. @param description undefined: no load is pushed from now on */
  #subscribeLoads(description: EngineDescription | undefined): void {
    for (const subscriber of this.#loadSubscribers) subscriber?.close();
    this.#loadSubscribers = (description?.loads ?? []).map((source, rank) => {
      try {
        return new LoadSubscriber(source, description?.capacityTokens, {
          onLoad: (load) => this.#listener.onLoad(this, rank, load),
          log: (message) => this.#listener.log(message),
        });
      } catch (error) {
        this.#listener.log(`Load of ${source.endpoint} is polled: ${reasonOf(error)}`);
        return undefined;
      }
    });
  }

  /** Of the ranks whose load is not pushed. Without an answer the last one holds. */
  async #pollLoads(): Promise<void> {
    const isPushed = (rank: number): boolean => this.#loadSubscribers[rank]?.isFresh === true;
    const polled = Array.from({ length: this.#ranks }, (_, rank) => rank).filter((rank) => !isPushed(rank));
    if (polled.length === 0) return;
    const answer = await this.http.get('/metrics', healthTimeoutMs).catch(() => undefined);
    if (answer?.status !== 200 || this.#dialect === undefined || !this.isUp) return;
    const loads = readLoads(answer.body, this.#ranks, this.#dialect.gauges);
    for (const rank of polled) if (!isPushed(rank)) this.#listener.onLoad(this, rank, loads[rank]);
  }
}

/** (ranks) */
function loadsAt(load: LoadSource | 'off', ranks: number): readonly LoadSource[] | undefined {
  return load === 'off' ? undefined : Array.from({ length: ranks }, (_, rank) => atRank(load, rank));
}
