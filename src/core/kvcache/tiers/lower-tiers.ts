// The prefix cache below device memory: host memory takes a copy of every block, SSD the blocks that host memory
// evicts.
import { digestWords } from '../../../util/blake2s.ts';
import { Int32List } from '../../../util/int32-list.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { BlockChain, SsdBlock } from '../../protocol/kv-events.ts';
import type { BlockListener, TierListener } from '../events/kv-event-log.ts';
import type { BlockFacts, EvictionRule } from '../eviction.ts';
import { BlockTier } from './block-tier.ts';
import { type ComputedBlocks, ComputedStores } from './computed-stores.ts';
import { SsdWrites, type StartedWrites } from './ssd-writes.ts';
import { digestAt, type SlotBlock, type TierMoves } from './tier-moves.ts';

export interface LowerTiersConfig {
  readonly hostBlocks: number;
  /** 0: there is no SSD. */
  readonly ssdBlocks: number;
  readonly eviction: EvictionRule;
  readonly facts?: BlockFacts | undefined;
  /** Undefined: blocks have no contents. */
  readonly moves?: TierMoves | undefined;
}

/** Blocks to read from SSD: with these, every block of the chain before `to` is available. */
export interface SsdRead {
  readonly blocks: readonly SsdBlock[];
  readonly to: number;
}

/** Where blocks read from SSD go. */
export interface SsdReadTarget {
  /** True: device memory. */
  readonly inPool: boolean;
  /** The slot of host memory for a block; undefined: it goes elsewhere, or another transfer brings it. */
  slot(block: number): SlotId | undefined;
}

/** The origin of a block in host memory; `host`: it was computed here. */
const origins = ['host', 'ssd', 'instance'] as const;
export type BlockOrigin = (typeof origins)[number];

/**
 * A block stored in device memory is copied to host memory at once (Mooncake, section 5.2: stored layer by layer while
 * it is computed), so that evicting it from device memory costs nothing. Blocks that host memory evicts are written to
 * SSD and stay there until SSD evicts them; a block that is loaded and evicted again is not written twice. Blocks read
 * from SSD are copied to host memory too. The listener is notified when the first of the three tiers stores a block,
 * when the last one removes it, and when only SSD holds it.
 */
export class LowerTiers implements BlockListener {
  readonly host: BlockTier;
  readonly ssd: BlockTier | undefined;
  readonly #onDevice: (words: Uint32Array, at: number) => boolean;
  /** Receives the blocks that all tiers together hold. */
  listener: TierListener | undefined;
  /** Slots of host memory being read: the first `#readNow` by the running step, the others by the next one. */
  readonly #reading = new Int32List();
  #readNow = 0;
  readonly moves: TierMoves | undefined;
  readonly #writes: SsdWrites;
  readonly #stores: ComputedStores;
  /** Blocks recorded in slots without contents so far, by slot. */
  readonly #recorded = new Map<SlotId, BlockId>();
  /** Slots of host memory with contents in transit. */
  #expected = 0;
  #newReads = 0;
  readonly #reads = [0, 0, 0];

  /** @param onDevice true if device memory holds the block of the digest at `words[at..at+4]` */
  constructor(config: LowerTiersConfig, onDevice: (words: Uint32Array, at: number) => boolean) {
    const { hostBlocks, ssdBlocks, eviction, facts, moves } = config;
    this.#onDevice = onDevice;
    this.host = new BlockTier(
      hostBlocks,
      eviction,
      (words, at, depth, above) => this.#evictedFromHost(words, at, depth, above),
      facts,
    );
    if (ssdBlocks > 0)
      this.ssd = new BlockTier(ssdBlocks, eviction, (words, at) => this.#evictedFromSsd(words, at), facts);
    this.moves = moves;
    this.#writes = new SsdWrites(this.host, this.ssd, moves);
    this.#stores = new ComputedStores(this.host, moves, onDevice);
  }

  /** Blocks that were not written to SSD because too many writes were running. */
  get lostBlocks(): number {
    return this.#writes.lostBlocks;
  }

  /** Device memory has stored or removed a block. */
  record(words: Uint32Array, at: number, stored: boolean, depth: number, block?: BlockId): void {
    // Most of these blocks are or were in host memory: one lookup suffices.
    const known = this.host.find(words, at);
    const slot = known === undefined && stored ? this.#store(words, at, depth, block) : known;
    if (slot !== undefined) this.host.setAbove(slot, stored);
    if (known !== undefined) return;
    if (slot !== undefined) this.#writes.storedInHost(slot);
    if (this.ssd?.contains(words, at) === true) this.listener?.setSsdOnly(words, at, !stored);
    else this.listener?.record(words, at, stored, depth);
  }

  /**
   * Copies the chain's blocks `from..to`, computed by a sequence with blocks that may move to another instance. Device
   * memory does not index them.
   */
  copyComputed({ words }: BlockChain, from: number, to: number, blockAt: (index: number) => BlockId): void {
    for (let index = from; index < to; index++) {
      const at = index * digestWords;
      if (this.#onDevice(words, at)) continue;
      this.record(words, at, true, index + 1, blockAt(index));
      this.record(words, at, false, 0);
    }
    this.storeRecorded();
  }

  /** The slot of a block that host memory takes; undefined when every slot is in use. */
  #store(words: Uint32Array, at: number, depth: number, block: BlockId | undefined): SlotId | undefined {
    const copied = block === undefined ? undefined : this.#stores.commit(words, at, block);
    if (copied !== undefined) return copied;
    const slot = this.host.put(words, at, depth);
    if (slot !== undefined && block !== undefined && this.moves !== undefined) this.#recorded.set(slot, block);
    return slot;
  }

  /**
   * Copies the blocks recorded since the last call, once all layer groups have recorded theirs. A block that a sequence
   * has left behind a window is not complete any more: host memory does not keep it.
   */
  storeRecorded(): void {
    if (this.#recorded.size === 0 || this.moves === undefined) return;
    const { digests } = this.host;
    const blocks: SlotBlock[] = [];
    for (const [slot, block] of this.#recorded) {
      const at = slot * digestWords;
      // Evicted by a later block.
      if (this.host.find(digests, at) !== slot) continue;
      const ids = this.moves.idsOf(block, digests, at);
      if (ids.includes(undefined)) this.host.drop(slot);
      else blocks.push({ slot, ids });
    }
    this.#recorded.clear();
    if (blocks.length > 0) this.moves.store(blocks);
  }

  /** A step is about to compute these blocks: host memory copies them layer by layer. They count when they are recorded. */
  stepComputes(blocks: readonly ComputedBlocks[]): void {
    this.#stores.begin(blocks);
  }

  /** The step has ended, and its results are recorded: copies of other blocks are useless. */
  computedRecorded(): void {
    this.#stores.end();
  }

  /**
   * SSD holds blocks of an earlier run: (blocks, 6) slot, depth and digest, in the order of their writes. Only while
   * the tiers are empty.
   */
  restore(blocks: Uint32Array): void {
    this.ssd?.restore(blocks);
    this.ssd?.forEach((words, at) => {
      this.listener?.record(words, at, true, 0);
      this.listener?.setSsdOnly(words, at, true);
    });
  }

  /** The time of all changes until the next call. */
  enter(nowUs: number): void {
    this.host.enter(nowUs);
    this.ssd?.enter(nowUs);
  }

  /** Blocks used between two ticks count as used at the same time. */
  tick(): void {
    this.host.tick();
    this.ssd?.tick();
  }

  /** A sequence uses the chain's first `blocks` blocks, in whichever tier they are. */
  touch(chain: BlockChain, blocks: number): void {
    this.tick();
    // The end of a prefix is evicted before its start.
    for (let i = blocks - 1; i >= 0; i--) {
      const slot = this.host.find(chain.words, i * digestWords);
      if (slot !== undefined) this.host.touch(slot);
      const ssdSlot = this.ssd?.find(chain.words, i * digestWords);
      if (ssdSlot !== undefined) this.ssd?.touch(ssdSlot);
    }
  }

  /** The end of the chain's blocks from `from`, before `to`, that host memory holds without a gap. */
  inHost(chain: BlockChain, from: number, to: number): number {
    let end = from;
    while (end < to && this.host.find(chain.words, end * digestWords) !== undefined) end++;
    return end;
  }

  /**
   * Pins host memory's blocks `from..to` of the chain, which must be held, until the `readEnded` of the next step. They
   * are read by a new sequence, or by a `resumed` one.
   */
  read(chain: BlockChain, from: number, to: number, resumed: boolean): void {
    for (let i = from; i < to; i++) {
      const slot = this.host.find(chain.words, i * digestWords);
      if (slot === undefined) throw new Error(`Cannot load a block: host memory does not hold it: block ${i}`);
      this.host.pin(slot);
      this.#reading.push(slot);
      if (!resumed) this.#reads[this.host.takeTag(slot)]++;
    }
    this.#newReads += to - from;
  }

  /** The contents of the chain's block at `index`, which is being read, go to these blocks of the layer groups. */
  load(chain: BlockChain, index: number, ids: readonly (BlockId | undefined)[]): void {
    const slot = this.host.find(chain.words, index * digestWords);
    if (slot !== undefined) this.moves?.load(slot, ids, digestAt(chain.words, index * digestWords));
  }

  /** (slots, pages of a block): pages of slots of host memory, where contents are real. */
  pagesIn(slots: readonly SlotId[]): Int32Array {
    return this.moves?.pagesOfSlots(slots) ?? new Int32Array(0);
  }

  /** Counts blocks that arrived in device memory without passing host memory. */
  countPoolArrivals(blocks: number, origin: BlockOrigin): void {
    this.#reads[origins.indexOf(origin)] += blocks;
  }

  /** Blocks passed to `read` since the last call. */
  takeReads(): number {
    const blocks = this.#newReads;
    this.#newReads = 0;
    return blocks;
  }

  /**
   * Blocks read from host memory, by origin: SSD or another instance if they came from there since the last read, host
   * memory for the others.
   */
  get reads(): Readonly<Record<BlockOrigin, number>> {
    const [host = 0, ssd = 0, instance = 0] = this.#reads;
    return { host, ssd, instance };
  }

  /** A step begins that reads all pinned blocks. */
  readStarted(): void {
    this.#readNow = this.#reading.length;
  }

  /** The step has ended: its reads are done or cancelled. */
  readEnded(): void {
    for (let i = this.#readNow - 1; i >= 0; i--) this.host.unpin(this.#reading.at(i));
    this.#reading.shift(this.#readNow);
    this.#readNow = 0;
  }

  /**
   * Allocates a slot of host memory for the chain's block at `index`, until `arrived` or `cancelExpected`. Undefined
   * when host memory holds the block, or another transfer brings it.
   */
  expect(chain: BlockChain, index: number): SlotId | 'full' | undefined {
    if (this.host.contains(chain.words, index * digestWords)) return undefined;
    const slot = this.host.allocate(chain.words, index * digestWords, index + 1);
    if (slot === undefined) return 'full';
    this.#expected++;
    return slot;
  }

  arrived(slot: SlotId, origin: BlockOrigin): void {
    this.#expected--;
    this.host.arrived(slot, origins.indexOf(origin));
    const { digests } = this.host;
    const at = slot * digestWords;
    const above = this.#onDevice(digests, at);
    this.host.setAbove(slot, above);
    this.#writes.storedInHost(slot);
    if (!above && this.ssd?.contains(digests, at) === true) this.listener?.setSsdOnly(digests, at, false);
    else if (!above) this.listener?.record(digests, at, true, 0);
    this.host.evictToFit();
  }

  cancelExpected(slot: SlotId): void {
    this.#expected--;
    this.host.drop(slot);
  }

  /** The end of the chain's blocks from `from`, before `to`, that host memory or SSD holds without a gap. */
  inHostOrOnSsd(chain: BlockChain, from: number, to: number): number {
    if (this.ssd === undefined) return this.inHost(chain, from, to);
    let end = from;
    while (end < to && this.#isReadable(chain.words, end * digestWords)) end++;
    return end;
  }

  #isReadable(words: Uint32Array, at: number): boolean {
    return this.host.find(words, at) !== undefined || this.ssd?.find(words, at) !== undefined;
  }

  /**
   * Blocks of the chain's `from..to` that SSD must provide: those that host memory lacks, or all of them if they go to
   * device memory. They are pinned until `ssdReadEnded`. Contents go to the blocks' slots in `target`; the result ends
   * where a block was lost.
   */
  readSsd(chain: BlockChain, from: number, to: number, target: SsdReadTarget): SsdRead {
    const blocks: SsdBlock[] = [];
    for (let i = from; i < to; i++) {
      const at = i * digestWords;
      const isRequired = target.inPool || this.host.find(chain.words, at) === undefined;
      const slot = isRequired ? this.ssd?.find(chain.words, at) : undefined;
      const hostSlot = this.moves === undefined || target.inPool ? undefined : target.slot(i);
      if (slot === undefined && (hostSlot !== undefined || target.inPool)) return { blocks, to: i };
      // Another transfer brings the block if it has no slot here.
      if (slot === undefined || (hostSlot === undefined && this.moves !== undefined && !target.inPool)) continue;
      this.ssd?.pin(slot);
      const page = hostSlot === undefined ? 0 : (this.moves?.pageOf(hostSlot) ?? 0);
      blocks.push({ slot, page, depth: i + 1, digest: digestAt(chain.words, at) });
    }
    return { blocks, to };
  }

  /** @param bad the slot that did not hold the expected contents */
  ssdReadEnded(blocks: readonly SsdBlock[], bad?: SlotId): void {
    for (const { slot } of blocks) this.ssd?.unpin(slot);
    if (bad === undefined || this.ssd === undefined || this.ssd.isPinned(bad)) return;
    this.ssd.drop(bad);
    // The slot is free, and its digest stays until the slot is allocated again.
    this.#reportRemoved(this.ssd.digests, bad * digestWords);
  }

  /** Writes to SSD started since the last call. */
  takeSsdWrites(): StartedWrites {
    return this.#writes.take();
  }

  /**
   * The oldest `blocks` writes to SSD have ended, at most all running ones. `failed`: indices of failed writes among
   * them.
   */
  written(blocks: number, failed: readonly number[] = []): void {
    for (const slot of this.#writes.ended(blocks, failed)) this.#dropFromSsd(slot);
  }

  #dropFromSsd(slot: SlotId): void {
    if (this.ssd === undefined) return;
    this.ssd.drop(slot);
    this.moves?.erase(slot);
    this.#reportRemoved(this.ssd.digests, slot * digestWords);
  }

  /** Drops the chain's first `blocks` blocks, which have suspect contents, unless they are in use. */
  invalidate(chain: BlockChain, blocks: number): void {
    for (let i = blocks - 1; i >= 0; i--) {
      const at = i * digestWords;
      let dropped = false;
      for (const tier of [this.host, this.ssd]) {
        const slot = tier?.find(chain.words, at);
        if (slot === undefined || tier === undefined || tier.isPinned(slot)) continue;
        tier.drop(slot);
        if (tier === this.ssd) this.moves?.erase(slot);
        dropped = true;
      }
      this.#writes.markSuspect(chain.words, at);
      if (dropped) this.#reportRemoved(chain.words, at);
    }
  }

  /**
   * (blocks, 4 words): the digests `onDevice` of all blocks in device memory, then those that only a lower tier has.
   */
  withLowerTiers(onDevice: Uint32Array): Uint32Array {
    const lowerOnly: number[] = [];
    const add = (words: Uint32Array, at: number) => {
      for (let i = 0; i < digestWords; i++) lowerOnly.push(words[at + i]);
    };
    this.host.forEach((words, at) => {
      if (this.host.find(words, at) !== undefined && !this.#onDevice(words, at)) add(words, at);
    });
    this.ssd?.forEach((words, at) => {
      if (this.host.find(words, at) === undefined && !this.#onDevice(words, at)) add(words, at);
    });
    const all = new Uint32Array(onDevice.length + lowerOnly.length);
    all.set(onDevice);
    all.set(lowerOnly, onDevice.length);
    return all;
  }

  /** Blocks that only SSD holds: the last ones of `withLowerTiers`. */
  get ssdOnlyBlocks(): number {
    let blocks = 0;
    this.ssd?.forEach((words, at) => {
      if (this.host.find(words, at) === undefined && !this.#onDevice(words, at)) blocks++;
    });
    return blocks;
  }

  /** True if a lower tier holds the block, or SSD is about to. */
  holds(words: Uint32Array, at: number): boolean {
    return this.host.find(words, at) !== undefined || this.ssd?.contains(words, at) === true;
  }

  #evictedFromHost(words: Uint32Array, at: number, depth: number, onDevice: boolean): void {
    this.#writes.evictedFromHost(words, at, depth);
    if (onDevice) return;
    if (this.ssd?.contains(words, at) === true) this.listener?.setSsdOnly(words, at, true);
    else this.listener?.record(words, at, false, 0);
  }

  #evictedFromSsd(words: Uint32Array, at: number): void {
    this.#reportRemoved(words, at);
  }

  /** Reports a block that a tier does not hold any more. */
  #reportRemoved(words: Uint32Array, at: number): void {
    if (this.listener === undefined || this.host.find(words, at) !== undefined || this.#onDevice(words, at)) return;
    if (this.ssd?.contains(words, at) === true) this.listener.setSsdOnly(words, at, true);
    else this.listener.record(words, at, false, 0);
  }

  /** Counts the changes of slots in both tiers. */
  get changes(): number {
    return this.host.changes + (this.ssd?.changes ?? 0);
  }

  /** Throws unless both tiers are sound and agree with device memory on the blocks that both hold. */
  checkSlots(): void {
    this.host.check();
    this.ssd?.check();
    this.host.forEachHeld((slot, words, at) => {
      if (this.host.isAbove(slot) !== this.#onDevice(words, at))
        throw new Error(`Tiers broken: device memory holds the block of slot ${slot}: ${!this.host.isAbove(slot)}`);
    });
  }

  /** Throws unless every block in transit is accounted for. */
  checkTransfers(): void {
    const expected = this.#expected + this.#stores.size;
    if (this.host.arriving !== expected)
      throw new Error(
        `Tiers broken: ${this.host.arriving} blocks are in transit to host memory, ${expected} are expected`,
      );
    if (this.#writes.running !== (this.ssd?.arriving ?? 0))
      throw new Error(
        `Tiers broken: ${this.ssd?.arriving} blocks are in transit to SSD, ${this.#writes.running} are being written`,
      );
  }
}
