// The owner's side of an instance's thread: starts it, sends commands over the bus of the process, interrupts steps, and detects its end.
import { Worker } from 'node:worker_threads';
import { defaultChannelConfig } from '../../core/membership/reliable-channel.ts';
import {
  defaultWatchdog,
  isOverdue,
  type Stall,
  type StepState,
  StepWatchdog,
  type WorkProgress,
} from '../../core/membership/step-watchdog.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { MemoryBus } from '../bus/memory-bus.ts';
import type { EndpointHandle, MemoryHub } from '../bus/memory-hub.ts';
import { nowUs } from './alarm.ts';
import { type InterruptReason, StepInterrupt } from './step-interrupt.ts';
import { StepProgress } from './step-progress.ts';
import { publishTo, subscribeTo } from './thread-bus.ts';
import type { FromInstance, InstanceThreadData, OutputsMessage, ReadyMessage, ToThread } from './thread-protocol.ts';

export interface InstanceThreadOptions {
  /** Module of the thread, which creates an instance and starts an InstanceLoop. */
  readonly entry: URL;
  /** The bus of the process: its hub, and the endpoint of this thread. */
  readonly hub: MemoryHub;
  readonly bus: MemoryBus;
  readonly data: Omit<InstanceThreadData<unknown>, 'abort' | 'endpoint'>;
  log(message: string): void;
  onOutputs(message: OutputsMessage): void;
  /** Limit of unread bytes sent to the thread: a thread over it is terminated. */
  readonly backlogBytesMax?: number;
  /** A thread that works for this time without advancing hangs, unless its step is predicted to be long; 0: never. */
  readonly watchdogUs?: number | undefined;
  /** The running step takes far longer than predicted, or does so no longer. */
  onOverdue?(isOverdue: boolean): void;
  /** The thread keeps the process alive until it ends; true unless given. */
  readonly holdsProcess?: boolean | undefined;
}

export class InstanceThread {
  readonly #bus: MemoryBus;
  /** Address of the instance on the bus, and its incarnation. */
  readonly #address: readonly [address: string, incarnation: number];
  readonly #worker: Worker;
  readonly #interrupt = new StepInterrupt();
  readonly #ready: Promise<ReadyMessage>;
  readonly #ended: Promise<void>;
  readonly #endpoint: EndpointHandle;
  readonly #backlogBytesMax: number;
  readonly #log: (message: string) => void;
  readonly #progress = new StepProgress(this.#interrupt.polled);
  readonly #hung: Promise<void>;
  readonly #watchdog: StepWatchdog;
  readonly #onOverdue: ((isOverdue: boolean) => void) | undefined;
  #observing: NodeJS.Timeout | undefined;
  #isOverdue = false;
  #onHung: () => void = () => {};
  #hasFailed = false;
  #isHung = false;
  #isGone = false;
  #onReady: (message: ReadyMessage) => void = () => {};
  #onStartFailed: (error: Error) => void = () => {};

  constructor(options: InstanceThreadOptions) {
    const { entry, hub, bus, data, log, onOutputs, backlogBytesMax } = options;
    const { address, incarnation } = data;
    this.#bus = bus;
    this.#address = [address, incarnation];
    this.#ready = new Promise((resolve, reject) => {
      this.#onReady = resolve;
      this.#onStartFailed = reject;
    });
    // Callers of `ready` receive the failure.
    this.#ready.catch(() => {});
    this.#hung = new Promise((resolve) => {
      this.#onHung = resolve;
    });
    this.#endpoint = hub.createEndpoint();
    this.#backlogBytesMax = backlogBytesMax ?? defaultChannelConfig.keptBytesMax;
    this.#log = log;
    const { endpoint, transferList } = this.#endpoint;
    const workerData: InstanceThreadData<unknown> = { ...data, abort: this.#interrupt.polled, endpoint };
    const stop = subscribeTo(bus, 'output', this.#address, (message) => this.#onMessage(message, log, onOutputs));
    this.#worker = new Worker(entry, { workerData, transferList: [...transferList] });
    if (options.holdsProcess === false) this.#worker.unref();
    this.#worker.once('error', (error) => {
      log(`Instance thread failed: ${error.stack ?? error.message}`);
      this.#onStartFailed(error);
    });
    this.#ended = new Promise((resolve) => {
      this.#worker.once('exit', (code) => {
        this.#endpoint.drop();
        clearInterval(this.#observing);
        // Messages that it sent before it ended.
        bus.drain();
        stop();
        this.#publishGone();
        this.#onStartFailed(new Error(`Cannot start the instance: its thread ended with code ${code}`));
        resolve();
      });
    });
    const { watchdogUs = defaultWatchdog.floorUs } = options;
    const floorUs = watchdogUs > 0 ? watchdogUs : Number.POSITIVE_INFINITY;
    this.#watchdog = new StepWatchdog({ ...defaultWatchdog, floorUs });
    this.#onOverdue = options.onOverdue?.bind(options);
    // Loading the model and warming up take an unknown time.
    this.#ready.then(() => this.#watch()).catch(() => {});
  }

  /** Resolves once the instance serves. @throws Error in one line if it cannot start */
  get ready(): Promise<ReadyMessage> {
    return this.#ready;
  }

  /** Resolves when the thread has ended, for any reason. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  /** Resolves when the thread hangs: all others treat it as ended. It ends when its native call returns, if ever. */
  get hung(): Promise<void> {
    return this.#hung;
  }

  get isHung(): boolean {
    return this.#isHung;
  }

  /** The step counter of the thread and the predicted time of its step. */
  get progress(): WorkProgress {
    return this.#progress.read();
  }

  /** The running step as last observed. */
  get step(): StepState {
    return this.#watchdog.step;
  }

  #watch(): void {
    const observe = (): void => {
      const stall = this.#watchdog.observe(nowUs(), this.#progress.read());
      const isOverdueNow = isOverdue(this.#watchdog.step);
      if (isOverdueNow !== this.#isOverdue) this.#onOverdue?.(isOverdueNow);
      this.#isOverdue = isOverdueNow;
      if (stall !== undefined) this.#fence(stall);
    };
    this.#observing = setInterval(observe, defaultWatchdog.pollUs / 1000).unref();
  }

  /** The thread hangs: it receives nothing more, and what it sends is dropped. A thread in a native call cannot be ended. */
  #fence({ stalledUs, limitUs, predictedUs }: Stall): void {
    clearInterval(this.#observing);
    const seconds = (us: number): string => `${(us / 1e6).toFixed(1)} s`;
    this.#log(
      `Instance thread hangs: it has not advanced for ${seconds(stalledUs)}, the limit is ${seconds(limitUs)}, its step was predicted to take ${seconds(predictedUs)}`,
    );
    this.#hasFailed = true;
    this.#endpoint.drop();
    this.#bus.drain();
    this.interrupt();
    void this.#worker.terminate();
    this.#isHung = true;
    this.#publishGone();
    this.#onHung();
  }

  #publishGone(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    publishTo(this.#bus, 'gone', this.#address, undefined);
  }

  /** Sends a command, which the thread reads once it is ready. */
  send(message: ToThread): void {
    if (message.kind === 'peerMessage') publishTo(this.#bus, 'peer', [this.#address[0], message.from], message.wire);
    else publishTo(this.#bus, 'command', this.#address, message);
    // The interrupt follows the message, so that the interrupted thread reads it.
    const reason = reasonOf(message);
    if (reason !== undefined) this.#interrupt.notify(reason);
    if (this.#endpoint.backlogBytes > this.#backlogBytesMax) this.#fail();
  }

  /** The instance is declared failed: it receives nothing more, its step is interrupted, and its thread exits. */
  #fail(): void {
    if (this.#hasFailed) return;
    this.#hasFailed = true;
    const { backlogBytes } = this.#endpoint;
    this.#log(
      `Instance thread terminated: it has not read ${backlogBytes} bytes, the limit is ${this.#backlogBytesMax}`,
    );
    this.#endpoint.drop();
    this.interrupt();
    void this.#worker.terminate();
  }

  /** Interrupts a step that may wait for data of another thread, whose loss has been announced. */
  interruptWaits(): void {
    this.#interrupt.notify('cancelOrLoss');
  }

  /** Interrupts the running step. */
  interrupt(): void {
    this.#interrupt.stop();
  }

  /** Ends the thread as soon as it reads the command; running requests are lost. Does not wait for a thread that hangs. */
  async close(): Promise<void> {
    const end = (): void => {
      this.send({ kind: 'close' });
      this.interrupt();
    };
    this.#ready.then(end, () => {});
    await Promise.race([this.#ended, this.#hung]);
  }

  #onMessage(
    message: FromInstance,
    log: (message: string) => void,
    onOutputs: (message: OutputsMessage) => void,
  ): void {
    switch (message.kind) {
      case 'events':
        onOutputs(message);
        break;
      case 'ready':
        this.#onReady(message);
        break;
      case 'log':
        log(message.message);
        break;
      case 'startFailed':
        this.#onStartFailed(new Error(message.message));
        // Its open handles may keep it alive.
        void this.#worker.terminate();
        break;
      default:
        assertNever(message);
    }
  }
}

function reasonOf(message: ToThread): InterruptReason | undefined {
  if (message.kind === 'submit') return message.request.batch === true ? undefined : 'request';
  const isGone = message.kind === 'peerMessage' && (message.wire.kind === 'gone' || message.wire.kind === 'ended');
  return message.kind === 'cancel' || isGone ? 'cancelOrLoss' : undefined;
}
