// Ids of a range that are free: its memory grows with the ids that were released, not with the range.
import { Int32List } from '../../../util/int32-list.ts';

/** The id released last is taken first; then those never taken, lowest first. */
export class FreeIds {
  readonly #first: number;
  #end: number;
  #reached: number;
  readonly #released = new Int32List();

  /** All of `first..end-1` are free. */
  constructor(first: number, end: number) {
    this.#first = first;
    this.#end = end;
    this.#reached = first;
  }

  get count(): number {
    return this.#released.length + Math.max(0, this.#end - this.#reached);
  }

  /** Ids from this one on have never been taken. */
  get reached(): number {
    return this.#reached;
  }

  /** Ids that were taken and are free again. Valid until the next change. */
  get released(): Int32Array {
    return this.#released.view();
  }

  /** Takes an id; `count` must not be 0. */
  take(): number {
    return this.#released.length > 0 ? this.#released.pop() : this.#reached++;
  }

  release(id: number): void {
    this.#released.push(id);
  }

  /** From now on those of `first..end-1` are free that `isFree` accepts: the lowest is taken first. */
  reset(end: number, isFree: (id: number) => boolean): void {
    this.#end = end;
    this.#released.clear();
    for (let id = end - 1; id >= this.#first; id--) {
      if (!isFree(id)) this.#reached = Math.max(this.#reached, id + 1);
      else if (id < this.#reached) this.#released.push(id);
    }
  }
}
