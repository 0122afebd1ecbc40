// All memory that an rManager accounts for: the device pages under the block cache, and host memory in blocks of the
// same size.

import { digestWords } from '../../util/blake2s.ts';
import { BlockCache, type BlockCacheConfig } from '../kvcache/block-cache.ts';
import { BlockTable } from '../kvcache/block-table.ts';
import { LendingMemory } from '../kvcache/lending-memory.ts';
import type { RBlockId } from '../protocol/ids.ts';
import { type Memory, memories } from '../protocol/lending-report.ts';
import type { LendingPolicy } from './lending-policy.ts';

export type { LendingPolicy, RBlockId };
export { BlockTable, memories };

export class InstanceMemory {
  readonly cache: BlockCache;
  readonly host: LendingMemory;
  readonly lending: Readonly<Record<Memory, LendingMemory>>;
  #digests = 0;

  constructor(device: BlockCacheConfig, hostBlocks: number) {
    this.cache = new BlockCache(device);
    this.host = LendingMemory.standalone(hostBlocks, this.cache.blockPages);
    this.lending = { device: this.cache.lending, host: this.host };
  }

  /** Pages in use at home or at creditors; 0 when no block is held. */
  get heldPages(): number {
    const { device, host } = this.lending;
    const single = device.lentPages + device.localPages + host.lentPages + host.localPages;
    return this.cache.usedPages + single;
  }

  /** Turns the blocks of the table into cached blocks with unique digests. */
  leaveAsCache(table: BlockTable): void {
    const blocks = table.length;
    const words = new Uint32Array(blocks * digestWords);
    for (let i = 0; i < blocks; i++) words[i * digestWords] = ++this.#digests;
    this.cache.cacheBlocks({ blocks, words }, 0, blocks, table);
    this.cache.release(table);
  }

  /**
   * Throws unless free + cached + used + lent = total in both memories, and every page is free or belongs to one block.
   */
  check(): void {
    this.cache.check();
    this.host.checkStandalone();
  }
}
