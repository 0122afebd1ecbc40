// Free pages of one instance. Pages are fungible: their ids suffice.
import { FreeIds } from './free-ids.ts';

/** Allocates page ids first..first+total-1. */
export class PagePool {
  /** Number of page ids, including the `first` ones outside the pool. */
  readonly ids: number;
  readonly #first: number;
  readonly #freeIds: FreeIds;
  readonly #inUse: Uint8Array;
  #total: number;

  constructor(total: number, first = 0) {
    this.#total = total;
    this.ids = first + total;
    this.#first = first;
    this.#freeIds = new FreeIds(first, this.ids);
    this.#inUse = new Uint8Array(this.ids);
  }

  /** Pages from this id on have never been allocated. */
  get reached(): number {
    return this.#freeIds.reached;
  }

  get total(): number {
    return this.#total;
  }

  /** Allocates the lowest `total` pages from now on, at most those of the beginning. The others must be free. */
  limit(total: number): void {
    const end = this.#first + total;
    for (let page = end; page < this.ids; page++)
      if (this.#inUse[page] === 1) throw new Error(`Cannot limit the pages to ${total}: page ${page} is in use`);
    this.#total = total;
    this.#freeIds.reset(end, (page) => this.#inUse[page] === 0);
  }

  get free(): number {
    return this.#freeIds.count;
  }

  /** Allocates `count` pages into `out[at..]`; false, with none allocated, when fewer are free. */
  allocate(count: number, out: Int32Array, at: number): boolean {
    if (count > this.free) return false;
    for (let i = 0; i < count; i++) {
      const page = this.#freeIds.take();
      this.#inUse[page] = 1;
      out[at + i] = page;
    }
    return true;
  }

  /** Frees `pages[at..at+count]`. Throws on a page that is free already. */
  release(pages: Int32Array, at: number, count: number): void {
    for (let i = 0; i < count; i++) {
      const page = pages[at + i];
      if (this.#inUse[page] !== 1)
        throw new Error(`Cannot free a page: it is not in use: page ${page} of ${this.total}`);
      this.#inUse[page] = 0;
      this.#freeIds.release(page);
    }
  }

  /** A page in use leaves the pool, and `other` enters it in its place. */
  exchange(page: number, other: number): void {
    if (this.#inUse[page] !== 1 || this.#inUse[other] !== 0)
      throw new Error(`Cannot exchange a page: it is not in use, or the other is: pages ${page} and ${other}`);
    this.#inUse[page] = 0;
    this.#inUse[other] = 1;
  }

  /** Throws unless every page is either in use or on the stack once. */
  check(): void {
    const seen = new Uint8Array(this.ids);
    for (const page of this.#freeIds.released) {
      if (seen[page] === 1 || this.#inUse[page] === 1) {
        throw new Error(`Page pool broken: page ${page} is free twice, or in use and free`);
      }
      seen[page] = 1;
    }
    let taken = 0;
    for (let page = 0; page < this.ids; page++) taken += this.#inUse[page];
    if (taken + this.free !== this.total) {
      throw new Error(`Page pool broken: ${taken} in use + ${this.free} free is not ${this.total}`);
    }
  }
}
