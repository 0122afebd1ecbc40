// Remote attention servers of the reference backend: the debtor's thread reads lent pages in place.
import type { RemoteAttentionCounts } from '../../util/counts.ts';
import { pageTokens, type RemoteKeys, type Step } from '../../util/step.ts';
import type { PageOf, ReferencePool } from './attention.ts';
import { Handles } from './handles.ts';

export class ReferenceAttentionServer {
  readonly #pool: ReferencePool;
  /** Pages of the lent blocks of each loan, (layers). */
  readonly #loans = new Map<number, Map<number, Int32Array>>();
  #queries = 0;
  #rows = 0;
  #refused = 0;

  constructor(pool: ReferencePool) {
    this.#pool = pool;
  }

  /** Times and bytes are 0: no bytes move, and no thread computes for another. */
  get counts(): RemoteAttentionCounts {
    const moved = { seconds: 0, restSeconds: 0, bytesIn: 0, bytesOut: 0 };
    return { queries: this.#queries, rows: this.#rows, refused: this.#refused, ...moved };
  }

  lend(loan: number, blocks: Int32Array, pages: Int32Array): void {
    const layers = pages.length / Math.max(1, blocks.length);
    if (!Number.isInteger(layers))
      throw new RangeError(`Cannot lend blocks: ${pages.length} pages cannot be divided among ${blocks.length} blocks`);
    for (const block of blocks)
      for (const [other, lent] of this.#loans)
        if (lent.has(block)) throw new RangeError(`Cannot lend blocks: block ${block} is lent already: loan ${other}`);
    for (const page of pages) this.#pool.page(page);
    const lent = this.#loans.get(loan) ?? new Map<number, Int32Array>();
    this.#loans.set(loan, lent);
    for (const [i, block] of blocks.entries()) lent.set(block, pages.slice(i * layers, (i + 1) * layers));
  }

  takeBack(loan: number, blocks: Int32Array): void {
    const lent = this.#loans.get(loan);
    for (const block of blocks) lent?.delete(block);
    if (lent?.size === 0) this.#loans.delete(loan);
  }

  holds({ loan, blocks }: RemoteKeys): boolean {
    const lent = this.#loans.get(loan);
    const all = lent !== undefined && blocks.every((block) => lent.has(block));
    if (!all) this.#refused++;
    return all;
  }

  answered(rows: number): void {
    this.#queries++;
    this.#rows += rows;
  }

  page(loan: number, block: number, layer: number): Float32Array {
    const page = this.#loans.get(loan)?.get(block)?.[layer];
    if (page === undefined)
      throw new RangeError(`Cannot find page: block ${block} of loan ${loan}, layer ${layer}: not lent`);
    return this.#pool.page(page);
  }
}

/** The servers of all reference backends of this thread. */
export const referenceAttentionServers = new Handles<ReferenceAttentionServer>('remote attention server');

/** The sequences of a step that some creditor would refuse. */
export function failedSequencesOf(step: Step): ReadonlySet<number> {
  const refused = step.remote.filter((keys) => referenceAttentionServers.find(keys.server)?.holds(keys) !== true);
  return new Set(refused.map(({ sequence }) => sequence));
}

/** Pages of one sequence in one layer, including those at creditors. */
export function withRemotePages(localPages: PageOf, remote: readonly RemoteKeys[], layer: number): PageOf {
  if (remote.length === 0) return localPages;
  return (position) => {
    const block = Math.floor(position / pageTokens);
    const keys = remote.find(({ firstBlock, blocks }) => block >= firstBlock && block < firstBlock + blocks.length);
    if (keys === undefined) return localPages(position);
    return referenceAttentionServers.get(keys.server).page(keys.loan, keys.blocks[block - keys.firstBlock], layer);
  };
}
