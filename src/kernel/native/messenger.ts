// The native messenger between pools of one process: a thread copies pages, layer by layer as steps compute them.
import type { MessengerCounts } from '../../util/counts.ts';
import type { KvPoolHandle } from '../backend.ts';
import { NativeReceiveBuffers } from './receive-buffers.ts';

/** Implements `Messenger` of `runtime`. Handles of receive buffers are valid in every thread of the process. */
export class NativeMessenger {
  readonly #buffers: NativeReceiveBuffers;
  readonly #pool: KvPoolHandle;
  readonly #messenger: number;

  /**
   * @param wake called in this thread after receive buffers have become complete @throws if the kernels are not
   * compiled
   */
  constructor(pool: KvPoolHandle, wake: () => void) {
    this.#buffers = new NativeReceiveBuffers(pool, wake);
    this.#pool = pool;
    this.#messenger = this.#buffers.native.createLocalSender(pool);
  }

  get counts(): MessengerCounts {
    return { ...this.#buffers.native.localSenderCounts(this.#messenger), faults: 0 };
  }

  get nextPoolStep(): number {
    return this.#buffers.native.nextStep(this.#pool);
  }

  open(pages: Int32Array, layers?: number): string {
    return String(this.#buffers.open(pages, layers));
  }

  /** The receive buffer itself, for pulls of received pages. */
  localBuffer(buffer: string): number {
    return Number(buffer);
  }

  arrivals(buffer: string, blocks: number): number | undefined {
    return this.#buffers.arrivals(Number(buffer), blocks);
  }

  close(buffer: string): void {
    this.#buffers.close(Number(buffer));
  }

  received(): readonly string[] {
    return this.#buffers.completed().map(String);
  }

  /** None: every receiver of this process is reachable. */
  unreachable(): readonly string[] {
    return [];
  }

  send(buffer: string, step: number, descriptors: Int32Array, last: boolean): void {
    this.#buffers.native.sendPages(this.#messenger, Number(buffer), step, descriptors, Number(last));
  }

  stop(buffer: string): void {
    this.#buffers.native.stopSending(this.#messenger, Number(buffer));
  }

  pending(buffer: string): number {
    return this.#buffers.native.pendingPages(this.#messenger, Number(buffer));
  }

  transportTo(): 'thread' {
    return 'thread';
  }

  /** Ends its thread. */
  free(): void {
    this.#buffers.native.freeLocalSender(this.#messenger);
    this.#buffers.free();
  }
}
