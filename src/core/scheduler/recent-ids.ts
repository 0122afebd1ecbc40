// Recently ended requests, so that late messages about them are recognised.

import type { RequestId } from '../protocol/ids.ts';

/** Minimum number of remembered ids; the maximum is twice as many. */
const idsMin = 4096;

/** Two generations: the older one is dropped whole, so that no id is removed individually. */
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
