// Touches KV pages before their first use: the system clears memory at its first touch, which then costs no step.
import type { Engine } from '../../engine/engine.ts';

/** Bytes that are touched ahead of the pages in use. */
const aheadBytes = 64 * 2 ** 20;
/** Bytes of a slice: the instance reads its messages after each. */
const sliceBytes = 2 ** 20;

interface UnusedPages {
  readonly first: number;
  readonly end: number;
}

export class PagesAhead {
  readonly #engine: Pick<Engine, 'writePage'>;
  readonly #zeros: Float32Array;
  readonly #ahead: number;
  readonly #slice: number;
  /** Pages before this one have been touched or used. */
  #touched = 0;

  /** @param pageValues elements of a page @param pageBytes size of a page */
  constructor(engine: Pick<Engine, 'writePage'>, pageValues: number, pageBytes: number) {
    this.#engine = engine;
    this.#zeros = new Float32Array(pageValues);
    this.#ahead = Math.ceil(aheadBytes / pageBytes);
    this.#slice = Math.ceil(sliceBytes / pageBytes);
  }

  /** Touches a slice of pages that were never allocated. False if enough pages have been touched. */
  advance({ first, end }: UnusedPages): boolean {
    const from = Math.max(this.#touched, first);
    const enough = Math.min(end, first + this.#ahead);
    const to = Math.min(enough, from + this.#slice);
    for (let page = from; page < to; page++) this.#engine.writePage(page, this.#zeros);
    this.#touched = Math.max(from, to);
    return to < enough;
  }
}
