// The native messenger of a pool: a thread that copies pages to other pools of the process, layer by layer as steps compute them.
import type { KvPoolHandle } from './backend.ts';
import { loadNative, type MessengerCounts, type NativeModule } from './native-module.ts';

const landedAtOnce = 64;

/** Its landings are valid in every thread of the process. What each member does is told where it is asked for: `Messenger` of `live`. */
export class NativeMessenger {
  readonly #native: NativeModule;
  readonly #pool: KvPoolHandle;
  readonly #messenger: number;
  readonly #landings: number;
  readonly #landed = new Int32Array(landedAtOnce);

  /** @param wake called in this thread, some time after landings have become complete @throws where the kernels are not compiled */
  constructor(pool: KvPoolHandle, wake: () => void) {
    const native = loadNative();
    if (native === undefined)
      throw new Error('Cannot move pages between instances: the native kernels are not compiled');
    this.#native = native;
    this.#pool = pool;
    this.#messenger = native.createMessenger(pool);
    this.#landings = native.createLandings(pool, wake);
  }

  get counts(): MessengerCounts {
    return this.#native.messengerCounts(this.#messenger);
  }

  get nextStep(): number {
    return this.#native.nextStep(this.#pool);
  }

  open(pages: Int32Array): number {
    return this.#native.openLanding(this.#landings, pages);
  }

  close(landing: number): void {
    this.#native.closeLanding(landing);
  }

  landed(): readonly number[] {
    const all: number[] = [];
    let count: number;
    do {
      count = this.#native.takeLanded(this.#landings, this.#landed);
      for (let i = 0; i < count; i++) all.push(this.#landed[i]);
    } while (count === landedAtOnce);
    return all;
  }

  send(landing: number, step: number, parcels: Int32Array, last: boolean): void {
    this.#native.sendPages(this.#messenger, landing, step, parcels, Number(last));
  }

  stop(landing: number): void {
    this.#native.stopSending(this.#messenger, landing);
  }

  /** Ends its thread. */
  free(): void {
    this.#native.freeMessenger(this.#messenger);
    this.#native.freeLandings(this.#landings);
  }
}
