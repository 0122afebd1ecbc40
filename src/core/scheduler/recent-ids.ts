// The ids of recently ended requests, so that late messages about them are recognised.

import type { RequestId } from '../protocol/ids.ts';

/** Minimum number of remembered ids; the maximum is twice as many. */
const idsMin = 4096;

/** Two generations: the older one is dropped as a whole, so that no id is removed individually. */
export class RecentIds {
  #ids = new Set<RequestId>();
  #older = new Set<RequestId>();

  add(id: RequestId): void {
    this.#ids.add(id);
    if (this.#ids.size < idsMin) return;
    this.#older = this.#ids;
    this.#ids = new Set();
  }

  has(id: RequestId): boolean {
    return this.#ids.has(id) || this.#older.has(id);
  }
}
