// Emits which pages debtors may read and write: those of the blocks that are lent to them.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { BlockId } from '../../protocol/ids.ts';
import type { LendingEffect } from '../../protocol/lending-messages.ts';
import type { Memory } from '../../protocol/lending-report.ts';
import type { EffectSink } from '../../scheduler/step-in-flight.ts';
import { lentName } from '../debtor/block-moves.ts';

export class LentPages {
  readonly #cache: BlockCache;
  readonly #hasHostPages: boolean;
  readonly #sink: EffectSink;

  /** @param hasHostPages blocks of host memory have pages */
  constructor(context: EffectSink & { readonly kvCache: BlockCache }, hasHostPages: boolean) {
    this.#cache = context.kvCache;
    this.#hasHostPages = hasHostPages;
    this.#sink = context;
  }

  granted({ debtor, memory, blocks }: Extract<LendingEffect, { kind: 'granted' }>): void {
    if (memory === 'host' && !this.#hasHostPages) return;
    const { blockPages } = this.#cache;
    const pages = new Int32Array(blocks.length * blockPages);
    for (const [i, block] of blocks.entries()) pages.set(this.#pagesOf(memory, block), i * blockPages);
    this.#sink.emit({ kind: 'lendBlocks', to: debtor, blocks: namesOf(memory, blocks), pages });
  }

  reclaimed({ debtor, memory, blocks }: Extract<LendingEffect, { kind: 'reclaimed' }>): void {
    if (memory === 'host' && !this.#hasHostPages) return;
    this.#sink.emit({ kind: 'takeBackBlocks', from: debtor, blocks: namesOf(memory, blocks) });
  }

  #pagesOf(memory: Memory, block: BlockId): Int32Array {
    const { lending, blockPages, extraRows } = this.#cache;
    if (memory === 'device') return lending.pageTable.subarray(block * blockPages, (block + 1) * blockPages);
    const row = extraRows?.hostRow(block);
    if (extraRows === undefined || row === undefined)
      throw new Error(`Borrower broken: host block ${block} has no pages`);
    return extraRows.pagesOf(row);
  }
}

function namesOf(memory: Memory, blocks: readonly BlockId[]): BlockId[] {
  return blocks.map((block) => lentName(memory, block));
}
