// An endpoint of a bus on a thread of its own, used from the test's thread as if it were local.
import { MessageChannel, receiveMessageOnPort, Worker } from 'node:worker_threads';
import type { Bus, Snapshots, StoredRecord, Subject } from '../../../src/runtime/bus/bus.ts';
import type { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';

type FromWorker =
  | { readonly kind: 'delivered'; readonly number: number; readonly payload: Uint8Array; readonly on: Subject }
  | { readonly kind: 'connection'; readonly number: number; readonly up: boolean }
  | { readonly kind: 'done'; readonly number: number; readonly value: unknown }
  | { readonly kind: 'failed'; readonly number: number; readonly message: string };

export class ThreadedBus implements Bus {
  readonly records = this.#recordsOf('records');
  readonly snapshots = this.#recordsOf('snapshots');
  readonly durable = true;
  /** Resolves when the thread has ended and the hub has dropped it. */
  readonly ended: Promise<void>;
  readonly #worker: Worker;
  readonly #responses: MessageChannel['port1'];
  readonly #responseCount = new Int32Array(new SharedArrayBuffer(4));
  readonly #handlers = new Map<number, (message: FromWorker) => void>();
  #numbers = 0;

  constructor(hub: MemoryHub) {
    const { endpoint, transferList, drop } = hub.createEndpoint();
    const { port1, port2 } = new MessageChannel();
    this.#responses = port1;
    this.#worker = new Worker(new URL('./bus-worker.mjs', import.meta.url), {
      workerData: { endpoint, responses: port2, responseCount: this.#responseCount },
      transferList: [...transferList, port2],
    });
    this.#worker.on('message', (message: FromWorker) => this.#handlers.get(message.number)?.(message));
    this.ended = new Promise((resolve) => {
      this.#worker.once('exit', () => {
        drop();
        resolve();
      });
    });
  }

  publish(subject: Subject, payload: Uint8Array): void {
    this.#callNow('publish', subject, payload);
  }

  subscribe(subject: Subject, handler: (payload: Uint8Array, subject: Subject) => void): () => void {
    const number = this.#numbers++;
    this.#handlers.set(number, (message) => message.kind === 'delivered' && handler(message.payload, message.on));
    this.#callNow('subscribe', subject, number);
    return () => this.#callNow('stop', number);
  }

  watchConnection(onChange: (up: boolean) => void): () => void {
    const number = this.#numbers++;
    this.#handlers.set(number, (message) => message.kind === 'connection' && onChange(message.up));
    this.#callNow('watchConnection', number);
    return () => this.#callNow('stop', number);
  }

  #recordsOf(bucket: 'records' | 'snapshots'): Snapshots {
    return {
      read: (key) => this.#callAsync<StoredRecord | undefined>('record', bucket, 'read', key),
      write: (key, value, revision) =>
        this.#callAsync<number | undefined>('record', bucket, 'write', key, value, revision),
      put: (key, value) => this.#callAsync<number>('record', bucket, 'put', key, value),
      remove: (key, revision) => this.#callAsync<boolean>('record', bucket, 'remove', key, revision),
    };
  }

  flush(): Promise<void> {
    return this.#callAsync('flush');
  }

  close(): Promise<void> {
    return this.#callAsync('close');
  }

  /** Ends the thread at once, whatever it is doing. */
  async kill(): Promise<void> {
    this.#worker.postMessage({ number: this.#numbers++, name: 'exit', args: [] });
    await this.ended;
  }

  async end(): Promise<void> {
    await this.#worker.terminate();
  }

  /** Returns when the thread has carried out the call. @throws what the call threw */
  #callNow(name: string, ...args: readonly unknown[]): void {
    this.#call(this.#numbers++, name, args);
  }

  async #callAsync<T>(name: string, ...args: readonly unknown[]): Promise<T> {
    const number = this.#numbers++;
    const done = new Promise<T>((resolve, reject) => {
      this.#handlers.set(number, (message) => {
        if (message.kind === 'done') resolve(message.value as T);
        if (message.kind === 'failed') reject(new Error(message.message));
      });
    });
    this.#call(number, name, args);
    return done;
  }

  #call(number: number, name: string, args: readonly unknown[]): void {
    const before = Atomics.load(this.#responseCount, 0);
    this.#worker.postMessage({ number, name, args });
    Atomics.wait(this.#responseCount, 0, before);
    const { message } = receiveMessageOnPort(this.#responses)?.message ?? { message: 'the thread does not answer' };
    if (message !== undefined) throw new Error(message);
  }
}
