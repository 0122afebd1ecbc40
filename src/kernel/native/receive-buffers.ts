// Receive buffers of a pool: native threads write pages of other pools to their slots.
import type { KvPoolHandle } from '../backend.ts';
import { loadNative, type NativeModule } from './addon.ts';
import { NativeArrivals } from './page-arrivals.ts';

const completedAtOnce = 64;

export class NativeReceiveBuffers {
  readonly native: NativeModule;
  readonly #queue: number;
  readonly #arrivals = new Map<number, NativeArrivals>();
  readonly #completed = new Int32Array(completedAtOnce);

  /**
   * @param wake called in this thread after receive buffers have become complete @throws if the kernels are not
   * compiled
   */
  constructor(pool: KvPoolHandle, wake: () => void) {
    const native = loadNative();
    if (native === undefined)
      throw new Error('Cannot move pages between instances: the native kernels are not compiled');
    this.native = native;
    this.#queue = native.createCompletionQueue(pool, wake);
  }

  open(pages: Int32Array, layers?: number): number {
    if (layers === undefined) return this.native.openReceiveBuffer(this.#queue, pages, 0);
    const arrivals = new NativeArrivals(layers, pages.length / layers);
    const buffer = this.native.openReceiveBuffer(this.#queue, pages, arrivals.handle);
    this.#arrivals.set(buffer, arrivals);
    return buffer;
  }

  close(buffer: number): void {
    this.native.closeReceiveBuffer(buffer);
    this.#arrivals.get(buffer)?.free();
    this.#arrivals.delete(buffer);
  }

  /** The arrivals that a step can wait for, of a buffer opened with `layers`; only its first `blocks` blocks arrive. */
  arrivals(buffer: number, blocks: number): number | undefined {
    const arrivals = this.#arrivals.get(buffer);
    arrivals?.expect(blocks);
    return arrivals?.handle;
  }

  /** Buffers that have become complete since the last call. */
  completed(): readonly number[] {
    const all: number[] = [];
    let count: number;
    do {
      count = this.native.takeCompleted(this.#queue, this.#completed);
      for (let i = 0; i < count; i++) all.push(this.#completed[i]);
    } while (count === completedAtOnce);
    return all;
  }

  free(): void {
    this.native.freeCompletionQueue(this.#queue);
  }
}
