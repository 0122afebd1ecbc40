// The creditor's side of moves: lent blocks, and copies into and out of them.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';

/** A debtor's copy into or out of lent blocks. */
interface Copy {
  readonly debtor: InstanceIndex;
  readonly move: number;
  readonly blocks: readonly number[];
  readonly receiveBuffer: ReceiveBufferHandle;
  readonly direction: 'in' | 'out';
}

export class LentBlocks {
  readonly #messenger: Messenger;
  readonly #layers: number;
  /** By debtor and block: (layers) pages. */
  readonly #pages = new Map<InstanceIndex, Map<number, Int32Array>>();
  #copies: Copy[] = [];

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

  /** Stops copies of these blocks before it returns. */
  takeBack(debtor: InstanceIndex, blocks: readonly number[]): void {
    const lent = this.#pages.get(debtor);
    const taken = new Set(blocks);
    for (const block of blocks) lent?.delete(block);
    this.#end((copy) => copy.debtor === debtor && copy.blocks.some((block) => taken.has(block)));
  }

  /** Instances that have borrowed blocks here. */
  get debtors(): readonly InstanceIndex[] {
    return [...this.#pages].flatMap(([debtor, blocks]) => (blocks.size > 0 ? [debtor] : []));
  }

  /** Pages of the blocks, in order; undefined if one is not lent to the debtor. */
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

  track(copy: Copy): void {
    this.#copies.push(copy);
  }

  /** The receive buffer is complete. Returns its copy. */
  onReceived(receiveBuffer: ReceiveBufferHandle): Pick<Copy, 'debtor' | 'move'> | undefined {
    const copy = this.#copies.find((each) => each.direction === 'in' && each.receiveBuffer === receiveBuffer);
    if (copy !== undefined) this.#end((each) => each === copy);
    return copy;
  }

  /** The receive buffer is unreachable. Returns the copy to it. */
  onUnreachable(receiveBuffer: ReceiveBufferHandle): Pick<Copy, 'debtor' | 'move'> | undefined {
    const copy = this.#copies.find((each) => each.direction === 'out' && each.receiveBuffer === receiveBuffer);
    if (copy !== undefined) this.#end((each) => each === copy);
    return copy;
  }

  /** True while a copy out of lent blocks is in progress. */
  get isCopying(): boolean {
    return this.#copies.some(({ direction }) => direction === 'out');
  }

  cancel(debtor: InstanceIndex, move: number): void {
    this.#end((copy) => copy.debtor === debtor && copy.move === move);
  }

  #end(isOver: (copy: Copy) => boolean): void {
    this.#copies = this.#copies.filter((copy) => {
      if (!isOver(copy)) return true;
      if (copy.direction === 'in') this.#messenger.close(copy.receiveBuffer);
      else this.#messenger.stop(copy.receiveBuffer);
      return false;
    });
  }
}
