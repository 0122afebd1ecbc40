// Prefixes in transit between instances or tiers: receive buffers for incoming blocks, and pinned blocks that are being
// sent.
import { digestWords } from '../../util/blake2s.ts';
import type { SlotId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { BlockCache } from './block-cache.ts';
import { BlockTable } from './block-table.ts';
import type { BlockOrigin, LowerTiers, SsdReadTarget } from './tiers/lower-tiers.ts';

/** Decides what transfers may take of the pool. */
export interface PageReserve {
  /** True if the running sequences still have enough pages with `pages` fewer. */
  canSpare(pages: number): boolean;
}

/** A receive buffer for blocks of a chain. */
export interface PrefixReceiveBuffer extends SsdReadTarget {
  /** The chain's blocks before this one are local already, or have a slot in the buffer. */
  readonly blocks: number;
  /** (to - from, layers): pages that receive the contents of blocks `from..to`. */
  pages(from: number, to: number): Int32Array;
  /** Blocks `from..to` have arrived: they are cached from now on. */
  fill(from: number, to: number, origin: BlockOrigin): void;
  /** Releases the buffer; unfilled slots become free. */
  close(): void;
}

/** A receive buffer in device memory. Sequences can reference its blocks before they are filled. */
export interface PoolReceiveBuffer extends PrefixReceiveBuffer {
  /** Appends the chain's first `blocks` blocks to an empty table, with one more reference to each. */
  share(blocks: number, table: BlockTable): void;
}

/** Blocks of a chain that are not evicted. */
export interface PinnedPrefix {
  readonly blocks: number;
  /** (blocks - from, layers): pages of the blocks' contents. */
  pages(from: number): Int32Array;
  close(): void;
}

/** Blocks at the start of the chain's first `blocksMax` that are local without a gap, in device or host memory. */
export function localPrefix(cache: BlockCache, chain: BlockChain, blocksMax: number): number {
  const device = cache.match(chain, blocksMax);
  return cache.lower?.inHost(chain, device, Math.min(blocksMax, chain.blocks)) ?? device;
}

/** (blocks, layers): pages of the chain's first `blocks` blocks, which must be local; for models without windows. */
export function localPages(cache: BlockCache, chain: BlockChain, blocks: number): Int32Array {
  const { reported, blockPages } = cache;
  const pages = new Int32Array(blocks * blockPages);
  for (let i = 0; i < blocks; i++) {
    const ids = reported.idsOf(chain, i);
    pages.set(ids === undefined ? hostPages(cache, chain, i) : reported.pagesOf(ids), i * blockPages);
  }
  return pages;
}

function hostPages({ lower }: BlockCache, { words }: BlockChain, block: number): Int32Array {
  const slot = lower?.host.find(words, block * digestWords);
  if (lower === undefined || slot === undefined)
    throw new Error(`Cannot copy a block: it is not local any more: block ${block}`);
  return lower.pagesIn([slot]);
}

/** Counts a use of the local blocks of the prefix. */
export function touchPrefix(cache: BlockCache, chain: BlockChain, blocks: number): void {
  const table = new BlockTable(cache.groups.length, blocks);
  cache.share(chain, blocks, table);
  cache.release(table);
  cache.lower?.touch(chain, blocks);
}

/** False for models with windows without host memory: device memory has no complete prefix then. */
export function sendsPrefixes(cache: BlockCache): boolean {
  return cache.lower !== undefined || !cache.hasWindows;
}

/**
 * Opens a receive buffer: in host memory if the instance has that tier, so that incoming blocks take no device memory.
 * Undefined without free memory, and without host memory for a model with windows. @param local number of local blocks
 */
export function receivePrefix(
  cache: BlockCache,
  chain: BlockChain,
  local: number,
  to: number,
  reserve: PageReserve,
): PrefixReceiveBuffer | undefined {
  if (cache.lower !== undefined) return HostReceiveBuffer.open(cache.lower, chain, local, to);
  if (!sendsPrefixes(cache)) return undefined;
  return DeviceReceiveBuffer.open(cache, chain, local, to, reserve);
}

/** Maximum share of the blocks read from SSD into device memory that host memory already holds. */
const hostShareMax = 1 / 4;

/**
 * Opens a receive buffer in device memory, even if only host memory holds the blocks before it. Undefined without free
 * memory, or if host memory holds many of the blocks to be read from SSD.
 * @param local number of local blocks
 * @param onSsd SSD provides the blocks from `local` to this one
 */
export function receiveInPool(
  cache: BlockCache,
  chain: BlockChain,
  { local, onSsd, to }: { readonly local: number; readonly onSsd: number; readonly to: number },
  reserve: PageReserve,
): PoolReceiveBuffer | undefined {
  const [group, other] = cache.groups;
  if (other !== undefined || group.window !== undefined) return undefined;
  let inHost = 0;
  for (let i = local; i < onSsd; i++) {
    const at = i * digestWords;
    if (cache.lower?.ssd?.find(chain.words, at) === undefined) return undefined;
    if (cache.lower.host.find(chain.words, at) !== undefined) inHost++;
  }
  if (inHost > hostShareMax * (onSsd - local)) return undefined;
  return DeviceReceiveBuffer.open(cache, chain, local, to, reserve);
}

/**
 * Pins blocks to be sent: in host memory if it has all of them, or if the model has windows. Undefined when no such
 * block from `from` on is local, or none can be pinned.
 */
export function pinPrefix(
  cache: BlockCache,
  chain: BlockChain,
  from: number,
  reserve: PageReserve,
): PinnedPrefix | undefined {
  const blocks = cache.match(chain, chain.blocks);
  const { lower } = cache;
  const inHost = lower?.inHost(chain, from, chain.blocks) ?? 0;
  const isComplete = inHost >= blocks || cache.hasWindows;
  if (lower !== undefined && isComplete && inHost > from) return new HostPins(lower, chain, from, inHost);
  return blocks > from && !cache.hasWindows
    ? DeviceReceiveBuffer.open(cache, chain, blocks, blocks, reserve)
    : undefined;
}

/** Blocks of device memory, referenced by a table that belongs to no sequence. */
class DeviceReceiveBuffer implements PoolReceiveBuffer {
  readonly blocks: number;
  readonly inPool = true;
  readonly #cache: BlockCache;
  readonly #chain: BlockChain;
  readonly #table: BlockTable;
  /** Blocks that only host memory has, loaded when they are required. */
  #inHost: HostPins | undefined;

  private constructor(cache: BlockCache, chain: BlockChain, local: number, to: number) {
    this.#cache = cache;
    this.#chain = chain;
    this.blocks = to;
    this.#table = new BlockTable(cache.groups.length, to);
    const onDevice = cache.share(chain, local, this.#table);
    if (cache.lower !== undefined && onDevice < local) this.#inHost = new HostPins(cache.lower, chain, onDevice, local);
    for (let block = onDevice; block < to; block++) cache.allocate(this.#table);
    cache.inTransit.add(this.#table);
  }

  static open(
    cache: BlockCache,
    chain: BlockChain,
    local: number,
    to: number,
    reserve: PageReserve,
  ): DeviceReceiveBuffer | undefined {
    const tokens = to * cache.blockTokens;
    if (!reserve.canSpare(cache.pagesToRun(chain, local, { tokens, rows: tokens }))) return undefined;
    return new DeviceReceiveBuffer(cache, chain, local, to);
  }

  slot(): undefined {
    return undefined;
  }

  pages(from: number, to = this.blocks): Int32Array {
    const { reported, blockPages } = this.#cache;
    const pages = new Int32Array((to - from) * blockPages);
    for (let i = from; i < to; i++) {
      const ids = reported.heldIds(this.#table, i);
      pages.set(reported.pagesOf(ids), (i - from) * blockPages);
    }
    return pages;
  }

  share(blocks: number, table: BlockTable): void {
    this.#readHost();
    for (const [g, group] of this.#cache.groups.entries())
      group.shareTable(this.#table.groups[g], blocks, table.groups[g]);
  }

  /** False when there was nothing to load. */
  #readHost(): boolean {
    const pins = this.#inHost;
    if (pins === undefined) return false;
    this.#inHost = undefined;
    this.#cache.lower?.touch(this.#chain, pins.blocks);
    this.#cache.readHost(this.#chain, pins.from, pins.blocks, this.#table, false);
    pins.close();
    return true;
  }

  fill(from: number, to: number, origin: BlockOrigin): void {
    // A lookup before the next step finds the prefix.
    if (this.#readHost()) this.#cache.flushLoads();
    this.#cache.lower?.countPoolArrivals(to - from, origin);
    this.#cache.releaseBehindWindow(this.#table, to * this.#cache.blockTokens);
    this.#cache.cacheBlocks(this.#chain, from, to, this.#table);
  }

  close(): void {
    this.#inHost?.close();
    this.#inHost = undefined;
    this.#cache.inTransit.delete(this.#table);
    this.#cache.release(this.#table);
  }
}

/** Slots of host memory with contents in transit. */
class HostReceiveBuffer implements PrefixReceiveBuffer {
  readonly blocks: number;
  readonly inPool = false;
  readonly #lower: LowerTiers;
  readonly #from: number;
  /** From block `from` on; undefined: the block is in host memory, or another transfer brings it. */
  readonly #slots: (SlotId | undefined)[];

  private constructor(lower: LowerTiers, from: number, slots: (SlotId | undefined)[]) {
    this.#lower = lower;
    this.#from = from;
    this.#slots = slots;
    this.blocks = from + slots.length;
  }

  static open(lower: LowerTiers, chain: BlockChain, local: number, to: number): HostReceiveBuffer | undefined {
    // Local blocks of the prefix must not be evicted for the rest.
    lower.touch(chain, to);
    const slots: (SlotId | undefined)[] = [];
    const buffer = new HostReceiveBuffer(lower, local, slots);
    for (let i = local; i < to; i++) {
      const slot = lower.expect(chain, i);
      if (slot === 'full') {
        buffer.close();
        return undefined;
      }
      slots.push(slot);
    }
    return new HostReceiveBuffer(lower, local, slots);
  }

  slot(block: number): SlotId | undefined {
    return this.#slots[block - this.#from];
  }

  pages(from: number, to: number): Int32Array {
    const required = this.#slots.slice(from - this.#from, to - this.#from);
    // Contents without a slot go to one behind the capacity, which nothing reads.
    return this.#lower.pagesIn(required.map((slot) => slot ?? this.#lower.host.capacity));
  }

  fill(from: number, to: number, origin: BlockOrigin): void {
    for (let i = from - this.#from; i < to - this.#from; i++) {
      const slot = this.#slots[i];
      if (slot !== undefined) this.#lower.arrived(slot, origin);
      this.#slots[i] = undefined;
    }
  }

  close(): void {
    for (const slot of this.#slots) if (slot !== undefined) this.#lower.cancelExpected(slot);
    this.#slots.length = 0;
  }
}

class HostPins implements PinnedPrefix {
  readonly blocks: number;
  readonly from: number;
  readonly #lower: LowerTiers;
  readonly #slots: readonly SlotId[];

  constructor(lower: LowerTiers, chain: BlockChain, from: number, to: number) {
    this.#lower = lower;
    this.blocks = to;
    this.from = from;
    this.#slots = Array.from({ length: to - from }, (_, i) => {
      const slot = lower.host.find(chain.words, (from + i) * digestWords);
      if (slot === undefined)
        throw new Error(`Cannot pin a block: host memory does not hold it any more: block ${from + i}`);
      lower.host.pin(slot);
      return slot;
    });
  }

  pages(from: number): Int32Array {
    return this.#lower.pagesIn(this.#slots.slice(from - this.from));
  }

  close(): void {
    for (const slot of this.#slots) this.#lower.host.unpin(slot);
  }
}
