// Names of requests that are over, so that what comes late of them is known for that.
import type { RequestId } from './ports.ts';

/** Remembered at most: what is later than that many ends is taken for news. */
const idsMax = 4096;

export class RecentIds {
  readonly #ids = new Set<RequestId>();

  add(id: RequestId): void {
    this.#ids.add(id);
    for (const oldest of this.#ids) {
      if (this.#ids.size <= idsMax) return;
      this.#ids.delete(oldest);
    }
  }

  has(id: RequestId): boolean {
    return this.#ids.has(id);
  }
}
