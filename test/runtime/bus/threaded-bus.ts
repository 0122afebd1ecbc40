// An end of a bus on a thread of its own, told what to do from the test's thread as if it were here.
import { MessageChannel, receiveMessageOnPort, Worker } from 'node:worker_threads';
import type { Bus, Snapshots, StoredRecord, Subject } from '../../../src/runtime/bus/bus.ts';
import type { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';

type Said =
  | { readonly kind: 'heard'; readonly number: number; readonly payload: Uint8Array; readonly on: Subject }
  | { readonly kind: 'watched'; readonly number: number; readonly up: boolean }
  | { readonly kind: 'done'; readonly number: number; readonly value: unknown }
  | { readonly kind: 'failed'; readonly number: number; readonly message: string };

export class ThreadedBus implements Bus {
  readonly records = this.#asked('records');
  readonly snapshots = this.#asked('snapshots');
  readonly lasting = true;
  /** Resolves when the thread has ended and the hub has dropped it. */
  readonly ended: Promise<void>;
  readonly #worker: Worker;
  readonly #answers: MessageChannel['port1'];
  readonly #answered = new Int32Array(new SharedArrayBuffer(4));
  readonly #heard = new Map<number, (said: Said) => void>();
  #numbers = 0;

  constructor(hub: MemoryHub) {
    const { seat, ports, drop } = hub.seat();
    const { port1, port2 } = new MessageChannel();
    this.#answers = port1;
    this.#worker = new Worker(new URL('./bus-worker.mjs', import.meta.url), {
      workerData: { seat, answers: port2, answered: this.#answered },
      transferList: [...ports, port2],
    });
    this.#worker.on('message', (said: Said) => this.#heard.get(said.number)?.(said));
    this.ended = new Promise((resolve) => {
      this.#worker.once('exit', () => {
        drop();
        resolve();
      });
    });
  }

  publish(subject: Subject, payload: Uint8Array): void {
    this.#now('publish', subject, payload);
  }

  subscribe(subject: Subject, hear: (payload: Uint8Array, subject: Subject) => void): () => void {
    const number = this.#numbers++;
    this.#heard.set(number, (said) => said.kind === 'heard' && hear(said.payload, said.on));
    this.#now('subscribe', subject, number);
    return () => this.#now('stop', number);
  }

  watch(tell: (up: boolean) => void): () => void {
    const number = this.#numbers++;
    this.#heard.set(number, (said) => said.kind === 'watched' && tell(said.up));
    this.#now('watch', number);
    return () => this.#now('stop', number);
  }

  #asked(bucket: 'records' | 'snapshots'): Snapshots {
    return {
      read: (key) => this.#later<StoredRecord | undefined>('ask', bucket, 'read', key),
      write: (key, value, revision) => this.#later<number | undefined>('ask', bucket, 'write', key, value, revision),
      put: (key, value) => this.#later<number>('ask', bucket, 'put', key, value),
      remove: (key, revision) => this.#later<boolean>('ask', bucket, 'remove', key, revision),
    };
  }

  flush(): Promise<void> {
    return this.#later('flush');
  }

  close(): Promise<void> {
    return this.#later('close');
  }

  /** Ends the thread in the middle of whatever it does. */
  async die(): Promise<void> {
    this.#worker.postMessage({ number: this.#numbers++, name: 'exit', args: [] });
    await this.ended;
  }

  async end(): Promise<void> {
    await this.#worker.terminate();
  }

  /** Returns when the thread has done it. @throws what it threw */
  #now(name: string, ...args: readonly unknown[]): void {
    this.#call(this.#numbers++, name, args);
  }

  async #later<T>(name: string, ...args: readonly unknown[]): Promise<T> {
    const number = this.#numbers++;
    const done = new Promise<T>((resolve, reject) => {
      this.#heard.set(number, (said) => {
        if (said.kind === 'done') resolve(said.value as T);
        if (said.kind === 'failed') reject(new Error(said.message));
      });
    });
    this.#call(number, name, args);
    return done;
  }

  #call(number: number, name: string, args: readonly unknown[]): void {
    const before = Atomics.load(this.#answered, 0);
    this.#worker.postMessage({ number, name, args });
    Atomics.wait(this.#answered, 0, before);
    const { message } = receiveMessageOnPort(this.#answers)?.message ?? { message: 'the thread does not answer' };
    if (message !== undefined) throw new Error(message);
  }
}
