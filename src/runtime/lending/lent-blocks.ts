// The creditor's side of moves: blocks that debtors may write to and read from, and which copies touch them.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';

/** A copy of a debtor's that touches blocks here. */
interface Use {
  readonly debtor: InstanceIndex;
  readonly move: number;
  readonly blocks: readonly number[];
  readonly landing: ReceiveBufferHandle;
  /** Into the blocks, or out of them. */
  readonly way: 'in' | 'out';
}

export class LentBlocks {
  readonly #messenger: Messenger;
  readonly #layers: number;
  /** By debtor and block: (layers) pages. */
  readonly #pages = new Map<InstanceIndex, Map<number, Int32Array>>();
  #uses: Use[] = [];

  /** @param layers pages of a block */
  constructor(messenger: Messenger, layers: number) {
    this.#messenger = messenger;
    this.#layers = layers;
  }

  /** @param pages (blocks, layers) */
  lend(debtor: InstanceIndex, blocks: readonly number[], pages: Int32Array): void {
    const lent = this.#pages.get(debtor) ?? new Map<number, Int32Array>();
    this.#pages.set(debtor, lent);
    for (const [i, block] of blocks.entries()) lent.set(block, pages.slice(i * this.#layers, (i + 1) * this.#layers));
  }

  /** Once it returns no copy touches these blocks. */
  takeBack(debtor: InstanceIndex, blocks: readonly number[]): void {
    const lent = this.#pages.get(debtor);
    const gone = new Set(blocks);
    for (const block of blocks) lent?.delete(block);
    this.#end((use) => use.debtor === debtor && use.blocks.some((block) => gone.has(block)));
  }

  /** Who has blocks here. */
  get debtors(): readonly InstanceIndex[] {
    return [...this.#pages].flatMap(([debtor, blocks]) => (blocks.size > 0 ? [debtor] : []));
  }

  /** Their pages, block by block; undefined: not all of them are lent to the debtor. */
  pagesOf(debtor: InstanceIndex, blocks: readonly number[]): Int32Array | undefined {
    const lent = this.#pages.get(debtor);
    const pages = new Int32Array(blocks.length * this.#layers);
    for (const [i, block] of blocks.entries()) {
      const own = lent?.get(block);
      if (own === undefined) return undefined;
      pages.set(own, i * this.#layers);
    }
    return pages;
  }

  track(use: Use): void {
    this.#uses.push(use);
  }

  /** All has come that was to land there: for whom. */
  onReceived(landing: ReceiveBufferHandle): Pick<Use, 'debtor' | 'move'> | undefined {
    const use = this.#uses.find((each) => each.way === 'in' && each.landing === landing);
    if (use !== undefined) this.#end((each) => each === use);
    return use;
  }

  /** It cannot be reached: for whom we would have copied there. */
  onUnreachable(landing: ReceiveBufferHandle): Pick<Use, 'debtor' | 'move'> | undefined {
    const use = this.#uses.find((each) => each.way === 'out' && each.landing === landing);
    if (use !== undefined) this.#end((each) => each === use);
    return use;
  }

  /** Something goes out for a debtor. */
  get isCopying(): boolean {
    return this.#uses.some(({ way }) => way === 'out');
  }

  cancel(debtor: InstanceIndex, move: number): void {
    this.#end((use) => use.debtor === debtor && use.move === move);
  }

  #end(isOver: (use: Use) => boolean): void {
    this.#uses = this.#uses.filter((use) => {
      if (!isOver(use)) return true;
      if (use.way === 'in') this.#messenger.close(use.landing);
      else this.#messenger.stop(use.landing);
      return false;
    });
  }
}
