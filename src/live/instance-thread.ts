// An instance's thread as the gateway's thread sees it: started, spoken to, interrupted, and gone.
import { type MessagePort, Worker } from 'node:worker_threads';
import {
  type EventsMessage,
  type FromInstance,
  type InstanceThreadData,
  jobsWord,
  type ReadyMessage,
  type ToInstance,
  type ToPeerMessage,
} from './protocol.ts';

export interface InstanceThreadOptions {
  /** Module that the thread runs: it makes an instance and starts an InstanceLoop. */
  readonly entry: URL;
  readonly data: Omit<InstanceThreadData<unknown>, 'abort'>;
  readonly log: (message: string) => void;
  readonly onEvents: (message: EventsMessage) => void;
  /** Undefined: it has no peers in other processes. */
  readonly onToPeer?: (message: ToPeerMessage) => void;
}

export class InstanceThread {
  readonly #worker: Worker;
  readonly #abort: Int32Array;
  readonly #ready: Promise<ReadyMessage>;
  readonly #ended: Promise<void>;

  constructor({ entry, data, log, onEvents, onToPeer }: InstanceThreadOptions) {
    const abort = new SharedArrayBuffer(8);
    this.#abort = new Int32Array(abort);
    const workerData: InstanceThreadData<unknown> = { ...data, abort };
    const { peers, lenders } = data;
    const ports = [...portsOf(peers), ...portsOf(lenders?.ports), lenders?.office];
    const transferList = ports.filter((port) => port !== undefined);
    this.#worker = new Worker(entry, { workerData, transferList });
    this.#ready = this.#awaitReady(log, onEvents, onToPeer);
    // Whoever awaits it sees the failure; nobody else has to.
    this.#ready.catch(() => {});
    this.#ended = new Promise((resolve) => this.#worker.once('exit', () => resolve()));
  }

  /** Resolves once the instance serves. @throws Error saying in one line why it cannot */
  get ready(): Promise<ReadyMessage> {
    return this.#ready;
  }

  /** Resolves when the thread has ended, asked to or not. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  send(message: ToInstance): void {
    this.#worker.postMessage(message, message.kind === 'newPeer' ? [message.port] : []);
    // Batch jobs yield within their step: what was sent is there when it stops.
    const waitedFor = message.kind === 'submit' && message.request.batch !== true;
    if (waitedFor && Atomics.load(this.#abort, jobsWord) === 1) this.interrupt();
  }

  /** Sets the word that the step in flight polls. */
  interrupt(): void {
    Atomics.store(this.#abort, 0, 1);
  }

  /** Ends the thread; what runs there is lost. */
  async close(): Promise<void> {
    this.send({ kind: 'close' });
    this.interrupt();
    await this.#ended;
  }

  #awaitReady(
    log: (message: string) => void,
    onEvents: (message: EventsMessage) => void,
    onToPeer: ((message: ToPeerMessage) => void) | undefined,
  ): Promise<ReadyMessage> {
    return new Promise((resolve, reject) => {
      this.#worker.on('message', (message: FromInstance) => {
        if (message.kind === 'events') onEvents(message);
        else if (message.kind === 'toPeer') onToPeer?.(message);
        else if (message.kind === 'ready') resolve(message);
        else if (message.kind === 'log') log(message.message);
        else {
          reject(new Error(message.message));
          // Whatever it began may keep it.
          void this.#worker.terminate();
        }
      });
      this.#worker.once('error', (error) => {
        log(`Instance thread failed: ${error.stack ?? error.message}`);
        reject(error);
      });
      this.#worker.once('exit', (code) =>
        reject(new Error(`Cannot start the instance: its thread ended with code ${code}`)),
      );
    });
  }
}

function portsOf(ports: InstanceThreadData<unknown>['peers'] = []): readonly (MessagePort | undefined)[] {
  return ports === 'others' ? [] : ports;
}
