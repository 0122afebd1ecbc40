// Tokenizes long texts on a few threads, so that the gateway's thread stays responsive. Callers take turns; each text has a deadline
// and ends with its request.
import { Worker } from 'node:worker_threads';

/** To a thread. */
export interface TokenizeCall {
  readonly call: number;
  readonly text: string;
  readonly addSpecial: boolean;
}

/** From a thread: token ids, or an error in one line. */
export type TokenizeResult =
  | { readonly call: number; readonly ids: Int32Array }
  | { readonly call: number; readonly message: string };

export interface TokenizerPoolOptions {
  /** Module that handles TokenizeCall messages. */
  readonly entry: URL;
  /** Its workerData. */
  readonly settings: unknown;
  readonly threadsMax: number;
  /** Time for one text, its wait for a thread included; undefined: 30 s. */
  readonly timeoutMs?: number;
  /** Time in which a thread may complete the text of a request that has ended; undefined: 1 s. A new thread reads the vocabulary again. */
  readonly graceMs?: number;
}

/** The request of a text. */
export interface TextRequest {
  /** Ends the call with the request. */
  readonly signal?: AbortSignal | undefined;
  /** Callers take turns; undefined: texts without one share a turn. */
  readonly caller?: string | undefined;
}

interface PendingCall extends TokenizeCall, TextRequest {
  readonly onAbort: () => void;
  /** Fires at its deadline. */
  readonly timer: NodeJS.Timeout;
  resolve(ids: Int32Array): void;
  reject(error: Error): void;
}

interface Thread {
  readonly worker: Worker;
  running: PendingCall | undefined;
  /** Ends the thread after its request. */
  timer: NodeJS.Timeout | undefined;
}

/** Threads start when they are needed. If one dies, its text fails, and another one starts with the next text. */
export class TokenizerPool {
  readonly #options: Required<TokenizerPoolOptions>;
  readonly #waiting = new TurnQueue();
  readonly #threads = new Set<Thread>();
  #calls = 0;
  #closed = false;

  constructor(options: TokenizerPoolOptions) {
    this.#options = { timeoutMs: 30_000, graceMs: 1_000, ...options };
  }

  /** Rejects with one line. */
  encode(text: string, addSpecial: boolean, { signal, caller }: TextRequest = {}): Promise<Int32Array> {
    return new Promise((resolve, reject) => {
      if (this.#closed || signal?.aborted === true) {
        reject(this.#closed ? closed() : aborted());
        return;
      }
      const onAbort = (): void => this.#abort(pending);
      const timer = setTimeout(() => this.#expire(pending), this.#options.timeoutMs);
      const call = { call: this.#calls++, text, addSpecial };
      const pending: PendingCall = { ...call, signal, caller, onAbort, timer, resolve, reject };
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiting.push(pending);
      this.#runNext();
    });
  }

  async close(): Promise<void> {
    this.#closed = true;
    for (const pending of this.#waiting.clear()) this.#fail(pending, closed());
    await Promise.all(Array.from(this.#threads, (thread) => this.#end(thread, 'it was closed')));
  }

  #runNext(): void {
    if (this.#waiting.isEmpty) return;
    const idle = [...this.#threads].find(({ running }) => running === undefined);
    const thread = idle ?? (this.#threads.size < this.#options.threadsMax ? this.#start() : undefined);
    const pending = thread === undefined ? undefined : this.#waiting.take();
    if (thread === undefined || pending === undefined) return;
    const { call, text, addSpecial } = pending;
    thread.running = pending;
    thread.worker.ref();
    thread.worker.postMessage({ call, text, addSpecial } satisfies TokenizeCall);
  }

  #start(): Thread {
    const { entry, settings } = this.#options;
    const worker = new Worker(entry, { workerData: settings });
    const thread: Thread = { worker, running: undefined, timer: undefined };
    this.#threads.add(thread);
    worker.on('message', (result: TokenizeResult) => {
      const pending = this.#take(thread);
      if (pending === undefined) return;
      if ('ids' in result) this.#settle(pending).resolve(result.ids);
      else this.#fail(pending, new Error(result.message));
      this.#runNext();
    });
    worker.once('error', ({ message }) => void this.#end(thread, message));
    worker.once('exit', () => void this.#end(thread, 'its thread ended'));
    return thread;
  }

  /** The thread runs nothing any more. Returns what it has run. */
  #take(thread: Thread): PendingCall | undefined {
    const { running } = thread;
    clearTimeout(thread.timer);
    thread.running = undefined;
    // An idle thread does not keep the process alive.
    thread.worker.unref();
    return running;
  }

  /** The caller receives a result: no signal ends the call from now on. */
  #settle(pending: PendingCall): PendingCall {
    clearTimeout(pending.timer);
    pending.signal?.removeEventListener('abort', pending.onAbort);
    return pending;
  }

  #fail(pending: PendingCall, error: Error): void {
    this.#settle(pending).reject(error);
  }

  /** The request has ended. A thread that tokenizes its text for longer than a short time is replaced. */
  #abort(pending: PendingCall): void {
    this.#fail(pending, aborted());
    const thread = this.#remove(pending);
    if (thread === undefined) return;
    thread.timer = setTimeout(() => void this.#end(thread, 'its request ended'), this.#options.graceMs);
  }

  #expire(pending: PendingCall): void {
    const why = `it takes longer than ${this.#options.timeoutMs / 1000} s`;
    const thread = this.#remove(pending);
    if (thread === undefined) this.#fail(pending, new Error(`Cannot tokenize text: ${why}`));
    else void this.#end(thread, why);
  }

  /** The call waits no more. Returns the thread that runs it, if one does. */
  #remove(pending: PendingCall): Thread | undefined {
    this.#waiting.remove(pending);
    return [...this.#threads].find(({ running }) => running === pending);
  }

  /** Its text fails. Does nothing for a thread that has been removed. */
  async #end(thread: Thread, why: string): Promise<void> {
    if (!this.#threads.delete(thread)) return;
    const pending = this.#take(thread);
    if (pending !== undefined) this.#fail(pending, new Error(`Cannot tokenize text: ${why}`));
    this.#runNext();
    await thread.worker.terminate();
  }
}

/** Texts that wait for a thread: each caller's in the order of arrival, one caller after another. */
class TurnQueue {
  /** By caller, without empty lists; the first one is next. */
  readonly #texts = new Map<string, PendingCall[]>();

  get isEmpty(): boolean {
    return this.#texts.size === 0;
  }

  push(pending: PendingCall): void {
    const own = this.#texts.get(pending.caller ?? '');
    if (own === undefined) this.#texts.set(pending.caller ?? '', [pending]);
    else own.push(pending);
  }

  /** The next text; its caller is last from now on. */
  take(): PendingCall | undefined {
    for (const [caller, own] of this.#texts) {
      const first = own.shift();
      this.#texts.delete(caller);
      if (own.length > 0) this.#texts.set(caller, own);
      return first;
    }
    return undefined;
  }

  remove(pending: PendingCall): void {
    const caller = pending.caller ?? '';
    const own = this.#texts.get(caller);
    const at = own?.indexOf(pending) ?? -1;
    if (at >= 0) own?.splice(at, 1);
    if (own?.length === 0) this.#texts.delete(caller);
  }

  /** Removes and returns all. */
  clear(): readonly PendingCall[] {
    const all = [...this.#texts.values()].flat();
    this.#texts.clear();
    return all;
  }
}

function closed(): Error {
  return new Error('Cannot tokenize text: it was closed');
}

function aborted(): Error {
  return new Error('Cannot tokenize text: its request ended');
}
