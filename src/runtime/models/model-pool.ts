// Models that load at their first request, and unload when another model needs their memory: least recently used first.

/** A model that is loaded. */
export interface LoadedModel {
  /** Memory that it holds. */
  readonly bytes: number;
  /** True while requests to it run: it is then not unloaded. */
  readonly isBusy: boolean;
  /** Resolves with the reason when it can serve no request any more. */
  readonly ended: Promise<string>;
  /** Resolves when its threads have ended and its memory is free. */
  close(): Promise<void>;
}

export interface PooledModel<Loaded extends LoadedModel> {
  readonly name: string;
  /** Memory that it will hold, from its headers and the options. */
  readonly expectedBytes: number;
  /** Resolves when it serves. @throws Error in one line if it cannot */
  load(): Promise<Loaded>;
}

export type ModelState = 'unloaded' | 'loading' | 'loaded' | 'unloading';

export interface ModelStatus {
  readonly name: string;
  readonly state: ModelState;
  /** Memory that is reserved for it; 0 if it is unloaded. */
  readonly bytes: number;
  readonly loads: number;
  readonly unloads: number;
  /** Loads that failed, and losses of all its instances. */
  readonly failures: number;
  /** Time of all loads. */
  readonly loadSeconds: number;
}

export interface PoolOptions {
  /** Memory of all loaded models together. */
  readonly bytesMax: number;
  log(message: string): void;
}

/** What a request needs of the pool. */
export interface PoolUse {
  /** A batch job leaves a model idle while another model waits for its memory. */
  readonly batch: boolean;
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal;
  /** Called before the request waits for a load; throws if the request is refused. Returns what the pool calls when the wait ends. */
  readonly beginWait?: () => () => void;
}

/** A model cannot be loaded. `retryAfterMs`: a later request may succeed without another cause. */
export class ModelUnavailable extends Error {
  readonly reason: 'memory' | 'failed' | 'closing';
  readonly retryAfterMs: number | undefined;
  /** Of `memory`: bytes that the model needs, bytes that cannot be freed now, and the limit. */
  readonly figures: { readonly needed: number; readonly held: number; readonly limit: number } | undefined;

  constructor(
    message: string,
    { reason, retryAfterMs, figures }: Pick<ModelUnavailable, 'reason' | 'retryAfterMs' | 'figures'>,
  ) {
    super(message);
    this.name = 'ModelUnavailable';
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
    this.figures = figures;
  }
}

const retryAfterMs = 1000;
/** Batch jobs wait for this time after a model was refused for memory that they keep in use. */
const yieldMs = 5000;
/** After a failed load, the next one begins no earlier; each further failure doubles the time. */
const backoffMsMin = 1000;
const backoffMsMax = 60_000;

interface FailedLoad {
  readonly message: string;
  readonly backoffMs: number;
  readonly retryMs: number;
}

interface Entry<Loaded extends LoadedModel> {
  readonly model: PooledModel<Loaded>;
  /** Resolves when it is loaded; undefined: it is neither loaded nor loading. */
  loading: Promise<Loaded> | undefined;
  loaded: Loaded | undefined;
  /** Resolves when it is unloaded; undefined: it is not unloading. */
  unloading: Promise<void> | undefined;
  /** Requests that wait for it or have not reached its instances. */
  users: number;
  bytes: number;
  /** Place in the order of uses. */
  lastUse: number;
  loads: number;
  unloads: number;
  failures: number;
  /** The last load, if it failed. */
  failed: FailedLoad | undefined;
  loadMs: number;
}

export class ModelPool<Loaded extends LoadedModel> {
  readonly #options: PoolOptions;
  readonly #entries: ReadonlyMap<string, Entry<Loaded>>;
  #uses = 0;
  #waiting = 0;
  /** The model that lacks memory, for which batch jobs of others yield until `untilMs`. */
  #starved: { readonly name: string; readonly untilMs: number } | undefined;
  #closing = false;

  constructor(models: readonly PooledModel<Loaded>[], options: PoolOptions) {
    this.#options = options;
    const counts = { users: 0, bytes: 0, lastUse: 0, loads: 0, unloads: 0, failures: 0, loadMs: 0 };
    const idle = { loading: undefined, loaded: undefined, unloading: undefined, failed: undefined };
    this.#entries = new Map(models.map((model) => [model.name, { model, ...idle, ...counts }]));
  }

  has(name: string): boolean {
    return this.#entries.has(name);
  }

  /** Requests that wait for their model. */
  get waiting(): number {
    return this.#waiting;
  }

  status(): readonly ModelStatus[] {
    return [...this.#entries.values()].map((entry) => {
      const { model, bytes, loads, unloads, failures, loadMs } = entry;
      const counts = { bytes, loads, unloads, failures, loadSeconds: loadMs / 1000 };
      return { name: model.name, state: stateOf(entry), ...counts };
    });
  }

  /**
   * Runs with the model loaded, which stays so at least until `run` has resolved. Concurrent first requests load once; a
   * disconnect ends the wait, not the load.
   * @throws ModelUnavailable, or the reason of the signal
   */
  async use<T>(name: string, use: PoolUse, run: (loaded: Loaded) => Promise<T>): Promise<T> {
    const entry = this.#entries.get(name);
    if (entry === undefined) throw new Error(`Invariant violated: the pool has no model ${name}`);
    if (use.batch) this.#yieldToStarved(entry);
    entry.users++;
    entry.lastUse = ++this.#uses;
    try {
      const loaded = entry.loaded ?? (await this.#wait(entry, use));
      return await run(loaded);
    } finally {
      entry.users--;
      entry.lastUse = ++this.#uses;
    }
  }

  /** Waits for loads and running requests, then unloads all. */
  async close(): Promise<void> {
    this.#closing = true;
    for (const entry of this.#entries.values()) {
      await entry.loading?.catch(() => {});
      this.#unload(entry);
    }
    await this.#unloaded();
  }

  async #wait(entry: Entry<Loaded>, { signal, beginWait }: PoolUse): Promise<Loaded> {
    signal.throwIfAborted();
    const endWait = beginWait?.();
    this.#waiting++;
    let stop = (): void => {};
    const aborted = new Promise<never>((_, reject) => {
      stop = () => reject(signal.reason);
      signal.addEventListener('abort', stop, { once: true });
    });
    try {
      return await Promise.race([this.#load(entry), aborted]);
    } finally {
      signal.removeEventListener('abort', stop);
      this.#waiting--;
      endWait?.();
    }
  }

  /** @throws ModelUnavailable if running requests keep the memory in use, or soon after a failed load */
  #load(entry: Entry<Loaded>): Promise<Loaded> {
    if (entry.loading !== undefined) return entry.loading;
    if (this.#closing) throw new ModelUnavailable('Cannot load model: the server is closing', closing);
    const { model } = entry;
    this.#refuseSoonAfter(entry.failed);
    const evicted = this.#evictedFor(entry);
    if (this.#starved?.name === model.name) this.#starved = undefined;
    entry.bytes = model.expectedBytes;
    for (const idle of evicted) this.#unload(idle);
    const loading = this.#loadNow(entry).catch((error: unknown) => {
      entry.failures++;
      entry.loading = undefined;
      entry.bytes = 0;
      const why = error instanceof Error ? error.message : String(error);
      const message = `Cannot load model '${model.name}': ${why}`;
      const backoffMs = Math.min(backoffMsMax, 2 * (entry.failed?.backoffMs ?? backoffMsMin / 2));
      entry.failed = { message, backoffMs, retryMs: performance.now() + backoffMs };
      this.#options.log(message);
      throw new ModelUnavailable(message, failed);
    });
    // Every waiting request may have disconnected.
    loading.catch(() => {});
    entry.loading = loading;
    return loading;
  }

  async #loadNow(entry: Entry<Loaded>): Promise<Loaded> {
    // The memory of models that unload, this one included, is not free before.
    await this.#unloaded();
    const startedMs = performance.now();
    const loaded = await entry.model.load();
    entry.loaded = loaded;
    entry.failed = undefined;
    entry.bytes = loaded.bytes;
    entry.loads++;
    entry.loadMs += performance.now() - startedMs;
    void loaded.ended.then((why) => {
      if (entry.loaded !== loaded) return;
      entry.failures++;
      this.#options.log(`Model '${entry.model.name}' is unloaded: ${why}`);
      this.#unload(entry);
    });
    this.#unloadExcess(entry);
    return loaded;
  }

  /** @throws ModelUnavailable with the reason of the failed load, and the time until the next one may begin */
  #refuseSoonAfter(load: FailedLoad | undefined): void {
    const remainingMs = (load?.retryMs ?? 0) - performance.now();
    if (load === undefined || remainingMs <= 0) return;
    throw new ModelUnavailable(load.message, { ...failed, retryAfterMs: remainingMs });
  }

  /** The idle models to unload, so that `entry` fits. @throws ModelUnavailable */
  #evictedFor(entry: Entry<Loaded>): readonly Entry<Loaded>[] {
    const { bytesMax } = this.#options;
    const { name, expectedBytes } = entry.model;
    const others = [...this.#entries.values()].filter((other) => other !== entry && other.bytes > 0);
    let held = others.reduce((sum, { bytes }) => sum + bytes, 0);
    const evicted: Entry<Loaded>[] = [];
    for (const idle of others.filter(isIdle).sort((a, b) => a.lastUse - b.lastUse)) {
      if (held + expectedBytes <= bytesMax) break;
      evicted.push(idle);
      held -= idle.bytes;
    }
    if (held + expectedBytes <= bytesMax) return evicted;
    this.#starved = { name, untilMs: performance.now() + yieldMs };
    const busy = others.filter((other) => !evicted.includes(other)).map((other) => `'${other.model.name}'`);
    const why = `${mebibytes(held)} of ${mebibytes(bytesMax)} are in use by ${busy.join(', ')}, which has requests`;
    throw new ModelUnavailable(`Cannot load model '${name}': it needs ${mebibytes(expectedBytes)}, and ${why}`, {
      reason: 'memory',
      retryAfterMs,
      figures: { needed: expectedBytes, held, limit: bytesMax },
    });
  }

  /** A model may need more memory than its headers promise: others unload if they are idle. */
  #unloadExcess(loaded: Entry<Loaded>): void {
    const entries = [...this.#entries.values()];
    let held = entries.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const idle of entries.filter(isIdle).sort((a, b) => a.lastUse - b.lastUse)) {
      if (held <= this.#options.bytesMax) return;
      if (idle === loaded) continue;
      held -= idle.bytes;
      this.#unload(idle);
    }
  }

  #unload(entry: Entry<Loaded>): void {
    const { loaded, model } = entry;
    if (loaded === undefined) return;
    entry.loaded = undefined;
    entry.loading = undefined;
    entry.bytes = 0;
    entry.unloads++;
    const unloading = loaded.close().catch((error: unknown) => {
      this.#options.log(
        `Model '${model.name}' did not unload cleanly: ${error instanceof Error ? error.message : error}`,
      );
    });
    entry.unloading = unloading.then(() => {
      entry.unloading = undefined;
    });
  }

  async #unloaded(): Promise<void> {
    await Promise.all([...this.#entries.values()].map(({ unloading }) => unloading));
  }

  /** @throws ModelUnavailable for a batch job whose model is to become idle */
  #yieldToStarved(entry: Entry<Loaded>): void {
    const { name, untilMs } = this.#starved ?? { name: entry.model.name, untilMs: 0 };
    if (name === entry.model.name || performance.now() >= untilMs) return;
    const message = `Cannot run a batch job of model '${entry.model.name}' now: model '${name}' needs its memory`;
    throw new ModelUnavailable(message, { reason: 'memory', retryAfterMs, figures: undefined });
  }
}

const failed = { reason: 'failed', retryAfterMs: undefined, figures: undefined } as const;
const closing = { reason: 'closing', retryAfterMs: undefined, figures: undefined } as const;

function isIdle<Loaded extends LoadedModel>({ loaded, users }: Entry<Loaded>): boolean {
  return loaded !== undefined && users === 0 && !loaded.isBusy;
}

function stateOf<Loaded extends LoadedModel>({ loaded, loading, unloading }: Entry<Loaded>): ModelState {
  if (loaded !== undefined) return 'loaded';
  if (loading !== undefined) return 'loading';
  return unloading === undefined ? 'unloaded' : 'unloading';
}

function mebibytes(bytes: number): string {
  return `${Math.ceil(bytes / 2 ** 20)} MiB`;
}
