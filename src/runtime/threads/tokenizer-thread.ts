// Tokenizes long texts on a separate thread, so that the gateway's thread stays responsive.
import { Worker } from 'node:worker_threads';

/** To the thread. */
export interface TokenizeCall {
  readonly call: number;
  readonly text: string;
  readonly addSpecial: boolean;
}

/** From the thread: token ids, or an error in one line. */
export type TokenizeResult =
  | { readonly call: number; readonly ids: Int32Array }
  | { readonly call: number; readonly message: string };

interface PendingCall {
  resolve(ids: Int32Array): void;
  reject(error: Error): void;
}

/** Starts its thread at the first call. If the thread dies, its pending calls fail, and the next call starts another. */
export class TokenizerThread {
  readonly #entry: URL;
  readonly #settings: unknown;
  readonly #pending = new Map<number, PendingCall>();
  #worker: Worker | undefined;
  #calls = 0;

  /** @param entry module that handles TokenizeCall messages; @param settings its workerData */
  constructor(entry: URL, settings: unknown) {
    this.#entry = entry;
    this.#settings = settings;
  }

  encode(text: string, addSpecial: boolean): Promise<Int32Array> {
    const message: TokenizeCall = { call: this.#calls++, text, addSpecial };
    return new Promise((resolve, reject) => {
      this.#pending.set(message.call, { resolve, reject });
      this.#worker ??= this.#start();
      this.#worker.postMessage(message);
    });
  }

  async close(): Promise<void> {
    await this.#worker?.terminate();
  }

  #start(): Worker {
    const worker = new Worker(this.#entry, { workerData: this.#settings });
    // An idle thread does not keep the process alive.
    worker.unref();
    worker.on('message', (result: TokenizeResult) => {
      const pending = this.#pending.get(result.call);
      this.#pending.delete(result.call);
      if ('ids' in result) pending?.resolve(result.ids);
      else pending?.reject(new Error(result.message));
    });
    worker.once('error', (error) => this.#fail(worker, error.message));
    worker.once('exit', () => this.#fail(worker, 'its thread ended'));
    return worker;
  }

  /** A failed thread exits later; pending calls may then belong to its successor. */
  #fail(worker: Worker, why: string): void {
    if (this.#worker !== worker) return;
    this.#worker = undefined;
    for (const { reject } of this.#pending.values()) reject(new Error(`Cannot tokenize text: ${why}`));
    this.#pending.clear();
  }
}
