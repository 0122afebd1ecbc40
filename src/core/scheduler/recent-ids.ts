// Names of requests that are over, so that what comes late of them is known for that.
import type { RequestId } from '../protocol/ids.ts';

/** Remembered at least: what is later than twice as many ends is taken for news. */
const idsMin = 4096;

/** In two halves, of which the older one goes whole: nothing has to be taken out name by name. */
export class RecentIds {
  #ids = new Set<RequestId>();
  #before = new Set<RequestId>();

  add(id: RequestId): void {
    this.#ids.add(id);
    if (this.#ids.size < idsMin) return;
    this.#before = this.#ids;
    this.#ids = new Set();
  }

  has(id: RequestId): boolean {
    return this.#ids.has(id) || this.#before.has(id);
  }
}
