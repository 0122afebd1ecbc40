// An instance's thread as the gateway's thread sees it: started, spoken to over the bus of the process, interrupted, and gone.
import { Worker } from 'node:worker_threads';
import { defaultChannelConfig } from '../../core/membership/reliable-channel.ts';
import type { MemoryBus } from '../bus/memory-bus.ts';
import type { EndpointHandle, MemoryHub } from '../bus/memory-hub.ts';
import { type InterruptReason, StepInterrupt } from './step-interrupt.ts';
import { publishTo, subscribeTo } from './thread-bus.ts';
import type { FromInstance, InstanceThreadData, OutputsMessage, ReadyMessage, ToThread } from './thread-protocol.ts';

export interface InstanceThreadOptions {
  /** Module that the thread runs: it makes an instance and starts an InstanceLoop. */
  readonly entry: URL;
  /** Of the process, and its end on this thread. */
  readonly hub: MemoryHub;
  readonly bus: MemoryBus;
  readonly data: Omit<InstanceThreadData<unknown>, 'abort' | 'endpoint'>;
  readonly log: (message: string) => void;
  readonly onOutputs: (message: OutputsMessage) => void;
  /** What may wait for it to hear, in bytes: a thread that lets more gather is ended. */
  readonly backlogBytesMax?: number;
}

export class InstanceThread {
  readonly #bus: MemoryBus;
  /** What it is called on the bus, and which start of it this is. */
  readonly #address: readonly [address: string, incarnation: number];
  readonly #worker: Worker;
  readonly #interrupt = new StepInterrupt();
  readonly #ready: Promise<ReadyMessage>;
  readonly #ended: Promise<void>;
  readonly #endpoint: EndpointHandle;
  readonly #backlogBytesMax: number;
  readonly #log: (message: string) => void;
  #isCutOff = false;
  #isReady: (message: ReadyMessage) => void = () => {};
  #isUnable: (error: Error) => void = () => {};

  constructor({ entry, hub, bus, data, log, onOutputs: onEvents, backlogBytesMax }: InstanceThreadOptions) {
    const { address, incarnation } = data;
    this.#bus = bus;
    this.#address = [address, incarnation];
    this.#ready = new Promise((resolve, reject) => {
      this.#isReady = resolve;
      this.#isUnable = reject;
    });
    // Whoever awaits it sees the failure; nobody else has to.
    this.#ready.catch(() => {});
    this.#endpoint = hub.createEndpoint();
    this.#backlogBytesMax = backlogBytesMax ?? defaultChannelConfig.keptBytesMax;
    this.#log = log;
    const { endpoint, transferList } = this.#endpoint;
    const workerData: InstanceThreadData<unknown> = { ...data, abort: this.#interrupt.polled, endpoint };
    const stop = subscribeTo(bus, 'output', this.#address, (message) => this.#hear(message, log, onEvents));
    this.#worker = new Worker(entry, { workerData, transferList: [...transferList] });
    this.#worker.once('error', (error) => {
      log(`Instance thread failed: ${error.stack ?? error.message}`);
      this.#isUnable(error);
    });
    this.#ended = new Promise((resolve) => {
      this.#worker.once('exit', (code) => {
        this.#endpoint.drop();
        // Its last words.
        bus.drain();
        stop();
        publishTo(bus, 'gone', this.#address, undefined);
        this.#isUnable(new Error(`Cannot start the instance: its thread ended with code ${code}`));
        resolve();
      });
    });
  }

  /** Resolves once the instance serves. @throws Error saying in one line why it cannot */
  get ready(): Promise<ReadyMessage> {
    return this.#ready;
  }

  /** Resolves when the thread has ended, asked to or not. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  /** Heard by one that is ready. */
  send(message: ToThread): void {
    if (message.kind === 'peerMessage') publishTo(this.#bus, 'peer', [this.#address[0], message.from], message.wire);
    else publishTo(this.#bus, 'command', this.#address, message);
    // Batch jobs yield within their step, and so does what only waits: what was sent is there when it stops.
    const comer = comerOf(message);
    if (comer !== undefined) this.#interrupt.notify(comer);
    if (this.#endpoint.backlogBytes > this.#backlogBytesMax) this.#cutOff();
  }

  /** It hears nothing: nobody says anything to it any more, and it ends with its step, which stops. */
  #cutOff(): void {
    if (this.#isCutOff) return;
    this.#isCutOff = true;
    const { backlogBytes } = this.#endpoint;
    this.#log(`Instance thread ended: ${backlogBytes} bytes waited for it to hear, ${this.#backlogBytesMax} may`);
    this.#endpoint.drop();
    this.interrupt();
    void this.#worker.terminate();
  }

  /** Another thread is gone, and all have been told: nobody is to wait for what it had. */
  interruptWaits(): void {
    this.#interrupt.notify('end');
  }

  /** Stops the step in flight. */
  interrupt(): void {
    this.#interrupt.stop();
  }

  /** Ends the thread, once it hears; what runs there is lost. */
  async close(): Promise<void> {
    const leave = (): void => {
      this.send({ kind: 'close' });
      this.interrupt();
    };
    this.#ready.then(leave, () => {});
    await this.#ended;
  }

  #hear(message: FromInstance, log: (message: string) => void, onEvents: (message: OutputsMessage) => void): void {
    switch (message.kind) {
      case 'events':
        onEvents(message);
        break;
      case 'ready':
        this.#isReady(message);
        break;
      case 'log':
        log(message.message);
        break;
      case 'startFailed':
        this.#isUnable(new Error(message.message));
        // Whatever it began may keep it.
        void this.#worker.terminate();
    }
  }
}

function comerOf(message: ToThread): InterruptReason | undefined {
  if (message.kind === 'submit') return message.request.batch === true ? undefined : 'request';
  const isGone = message.kind === 'peerMessage' && message.wire.kind === 'gone';
  return message.kind === 'cancel' || isGone ? 'end' : undefined;
}
