// Landings of a pool: places in it that pages from others are written to by native threads.
import type { KvPoolHandle } from '../backend.ts';
import { loadNative, type NativeModule } from './addon.ts';
import { NativeArrivals } from './page-arrivals.ts';

const landedAtOnce = 64;

export class NativeLandings {
  readonly native: NativeModule;
  readonly #landings: number;
  readonly #arrivals = new Map<number, NativeArrivals>();
  readonly #landed = new Int32Array(landedAtOnce);

  /** @param wake called in this thread, some time after landings have become complete @throws where the kernels are not compiled */
  constructor(pool: KvPoolHandle, wake: () => void) {
    const native = loadNative();
    if (native === undefined)
      throw new Error('Cannot move pages between instances: the native kernels are not compiled');
    this.native = native;
    this.#landings = native.createCompletionQueue(pool, wake);
  }

  open(pages: Int32Array, layers?: number): number {
    if (layers === undefined) return this.native.openReceiveBuffer(this.#landings, pages, 0);
    const arrivals = new NativeArrivals(layers, pages.length / layers);
    const landing = this.native.openReceiveBuffer(this.#landings, pages, arrivals.handle);
    this.#arrivals.set(landing, arrivals);
    return landing;
  }

  close(landing: number): void {
    this.native.closeReceiveBuffer(landing);
    this.#arrivals.get(landing)?.free();
    this.#arrivals.delete(landing);
  }

  /** What steps wait for that compute behind a landing opened by `layers`, of which only the first `blocks` blocks come. */
  arrivals(landing: number, blocks: number): number | undefined {
    const arrivals = this.#arrivals.get(landing);
    arrivals?.expect(blocks);
    return arrivals?.handle;
  }

  /** Those that have become complete since the last call. */
  landed(): readonly number[] {
    const all: number[] = [];
    let count: number;
    do {
      count = this.native.takeCompleted(this.#landings, this.#landed);
      for (let i = 0; i < count; i++) all.push(this.#landed[i]);
    } while (count === landedAtOnce);
    return all;
  }

  free(): void {
    this.native.freeCompletionQueue(this.#landings);
  }
}
