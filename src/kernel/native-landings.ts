// Landings of a pool: places in it that pages from others are written to by native threads.
import type { KvPoolHandle } from './backend.ts';
import { loadNative, type NativeModule } from './native-module.ts';

const landedAtOnce = 64;

export class NativeLandings {
  readonly native: NativeModule;
  readonly #landings: number;
  readonly #landed = new Int32Array(landedAtOnce);

  /** @param wake called in this thread, some time after landings have become complete @throws where the kernels are not compiled */
  constructor(pool: KvPoolHandle, wake: () => void) {
    const native = loadNative();
    if (native === undefined)
      throw new Error('Cannot move pages between instances: the native kernels are not compiled');
    this.native = native;
    this.#landings = native.createLandings(pool, wake);
  }

  open(pages: Int32Array): number {
    return this.native.openLanding(this.#landings, pages);
  }

  close(landing: number): void {
    this.native.closeLanding(landing);
  }

  /** Those that have become complete since the last call. */
  landed(): readonly number[] {
    const all: number[] = [];
    let count: number;
    do {
      count = this.native.takeLanded(this.#landings, this.#landed);
      for (let i = 0; i < count; i++) all.push(this.#landed[i]);
    } while (count === landedAtOnce);
    return all;
  }

  free(): void {
    this.native.freeLandings(this.#landings);
  }
}
