// Pinned prefixes: blocks that stay in memory until a deadline, even if other blocks require the memory.
import type { PinId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { BlockCache } from './block-cache.ts';
import { BlockTable } from './block-table.ts';

interface Pin {
  /** Undefined while its blocks are computed: until then it only reserves memory. */
  table: BlockTable | undefined;
  readonly blocks: number;
  untilUs: number;
}

/**
 * A pin references its blocks like a sequence, so they are not evicted. A block in several pins counts once for each.
 */
export class Pins {
  readonly #cache: BlockCache;
  readonly #blocksMax: number;
  readonly #pins = new Map<PinId, Pin>();
  /** (blocks of the first group): number of pins that reference it. */
  readonly #holders: Uint16Array;
  #blocks = 0;
  #nextUs = Number.POSITIVE_INFINITY;

  /** @param share maximum share of the pages that pins may occupy */
  constructor(cache: BlockCache, share: number) {
    this.#cache = cache;
    this.#blocksMax = Math.floor(Math.floor(cache.pages.total * share) / cache.blockPages);
    this.#holders = new Uint16Array(share > 0 ? cache.groups[0].pool.total : 0);
  }

  get size(): number {
    return this.#pins.size;
  }

  /** Blocks of all pins, and their maximum. */
  get blocks(): { readonly held: number; readonly max: number } {
    return { held: this.#blocks, max: this.#blocksMax };
  }

  /** When the next pin expires; Infinity if none does. */
  get nextUs(): number {
    return this.#nextUs;
  }

  #findNext(): void {
    this.#nextUs = Number.POSITIVE_INFINITY;
    for (const { table, untilUs } of this.#pins.values())
      if (table !== undefined) this.#nextUs = Math.min(this.#nextUs, untilUs);
  }

  /** Reserves memory for a pin of `blocks` blocks; false if pins would exceed their share. */
  reserve(id: PinId, blocks: number): boolean {
    if (this.#pins.has(id)) throw new Error(`Cannot pin: ${id} is pinned already`);
    if (this.#blocks + blocks > this.#blocksMax) return false;
    this.#pins.set(id, { table: undefined, blocks, untilUs: Number.POSITIVE_INFINITY });
    this.#blocks += blocks;
    return true;
  }

  /** References the chain's first blocks in the cache, up to the reserved number. Returns how many. */
  fill(id: PinId, chain: BlockChain, untilUs: number): number {
    const pin = this.#pins.get(id);
    if (pin === undefined || pin.table !== undefined)
      throw new Error(`Cannot fill a pin: no memory is reserved for ${id}`);
    const table = new BlockTable(this.#cache.groups.length, pin.blocks);
    const blocks = this.#cache.share(chain, pin.blocks, table);
    this.#cache.pinned.add(table);
    for (const block of table.groups[0].blocks.view()) this.#holders[block]++;
    pin.table = table;
    pin.untilUs = untilUs;
    this.#findNext();
    return blocks;
  }

  /** When the pin expires; undefined if it holds no blocks. */
  untilUs(id: PinId): number | undefined {
    const pin = this.#pins.get(id);
    return pin?.table === undefined ? undefined : pin.untilUs;
  }

  /** Moves the deadline of the pin. */
  extend(id: PinId, untilUs: number): void {
    const pin = this.#pins.get(id);
    if (pin !== undefined) pin.untilUs = untilUs;
    this.#findNext();
  }

  /** The blocks of the pin become ordinary cache, or its reservation ends. False for an unknown pin. */
  release(id: PinId): boolean {
    const pin = this.#pins.get(id);
    if (pin === undefined) return false;
    this.#pins.delete(id);
    this.#blocks -= pin.blocks;
    if (pin.table === undefined) return true;
    for (const block of pin.table.groups[0].blocks.view()) this.#holders[block]--;
    this.#cache.pinned.delete(pin.table);
    this.#cache.release(pin.table);
    this.#findNext();
    return true;
  }

  /** Releases expired pins. */
  expire(nowUs: number): readonly PinId[] {
    if (this.#nextUs > nowUs) return [];
    const expired = [...this.#pins].filter(([, { table, untilUs }]) => table !== undefined && untilUs <= nowUs);
    for (const [id] of expired) this.release(id);
    return expired.map(([id]) => id);
  }

  /** Blocks among the table's first `blocks` that pins reference. */
  pinnedOf(table: BlockTable, blocks: number): number {
    const { first, blocks: held } = table.groups[0];
    let pinned = 0;
    for (let i = first; i < blocks; i++) pinned += Number(this.#holders[held.at(i - first)] > 0);
    return pinned;
  }

  /** Throws unless pins stay within their share and every block is counted. */
  check(): void {
    const holders = new Uint16Array(this.#holders.length);
    let blocks = 0;
    for (const [id, pin] of this.#pins) {
      blocks += pin.blocks;
      if (pin.table === undefined) continue;
      if (!this.#cache.pinned.has(pin.table) || pin.table.length > pin.blocks)
        throw new Error(`Pins broken: ${id} holds ${pin.table.length} blocks, ${pin.blocks} are reserved for it`);
      for (const block of pin.table.groups[0].blocks.view()) holders[block]++;
    }
    if (blocks !== this.#blocks || blocks > this.#blocksMax || holders.some((count, i) => count !== this.#holders[i]))
      throw new Error(`Pins broken: ${blocks} blocks of ${this.#blocksMax}, ${this.#blocks} counted`);
  }
}
