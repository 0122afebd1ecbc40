// The native messenger of a pool: a thread that copies pages to other pools of the process, layer by layer as steps compute them.
import type { MessengerCounts } from '../../util/counts.ts';
import type { KvPoolHandle } from '../backend.ts';
import { NativeLandings } from './receive-buffers.ts';

/** Its landings are valid in every thread of the process. What each member does is told where it is asked for: `Messenger` of `live`. */
export class NativeMessenger {
  readonly #landings: NativeLandings;
  readonly #pool: KvPoolHandle;
  readonly #messenger: number;

  /** @param wake called in this thread, some time after landings have become complete @throws where the kernels are not compiled */
  constructor(pool: KvPoolHandle, wake: () => void) {
    this.#landings = new NativeLandings(pool, wake);
    this.#pool = pool;
    this.#messenger = this.#landings.native.createLocalSender(pool);
  }

  get counts(): MessengerCounts {
    return { ...this.#landings.native.localSenderCounts(this.#messenger), faults: 0 };
  }

  get nextStep(): number {
    return this.#landings.native.nextStep(this.#pool);
  }

  open(pages: Int32Array, layers?: number): string {
    return String(this.#landings.open(pages, layers));
  }

  arrivals(landing: string, blocks: number): number | undefined {
    return this.#landings.arrivals(Number(landing), blocks);
  }

  close(landing: string): void {
    this.#landings.close(Number(landing));
  }

  received(): readonly string[] {
    return this.#landings.landed().map(String);
  }

  /** None: every receiver of this process is reachable. */
  unreachable(): readonly string[] {
    return [];
  }

  send(landing: string, step: number, parcels: Int32Array, last: boolean): void {
    this.#landings.native.sendPages(this.#messenger, Number(landing), step, parcels, Number(last));
  }

  stop(landing: string): void {
    this.#landings.native.stopSending(this.#messenger, Number(landing));
  }

  pending(landing: string): number {
    return this.#landings.native.pendingPages(this.#messenger, Number(landing));
  }

  transportTo(): 'thread' {
    return 'thread';
  }

  /** Ends its thread. */
  free(): void {
    this.#landings.native.freeLocalSender(this.#messenger);
    this.#landings.free();
  }
}
