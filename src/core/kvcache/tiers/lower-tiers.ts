// The prefix cache below device memory: host memory takes a copy of every block, SSD what host memory has no room for.
import { digestWords } from '../../../util/blake2s.ts';
import { Int32List } from '../../../util/int32-list.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { BlockChain, SsdBlock } from '../../protocol/kv-events.ts';
import type { BlockListener, TierListener } from '../events/kv-event-log.ts';
import type { EvictionKind } from '../eviction.ts';
import type { PrefixReceiveBuffer } from '../prefix-transfer.ts';
import { BlockTier } from './block-tier.ts';
import { type BegunWrites, SsdWrites } from './ssd-writes.ts';
import { digestAt, type TierMoves } from './tier-moves.ts';

export interface LowerTiersConfig {
  readonly hostBlocks: number;
  /** 0: there is no SSD. */
  readonly ssdBlocks: number;
  readonly eviction: EvictionKind;
  /** Undefined: blocks have no contents. */
  readonly moves?: TierMoves | undefined;
}

/** What is read of SSD: with these all of the chain before block `to` is there. */
export interface SsdRead {
  readonly blocks: readonly SsdBlock[];
  readonly to: number;
}

/** Where a block was before host memory had it; `host`: it was computed here. */
const origins = ['host', 'ssd', 'instance'] as const;
export type BlockOrigin = (typeof origins)[number];

/**
 * A block that device memory comes to hold is copied to host memory at once (Mooncake, section 5.2: stored layer by layer while it is computed),
 * so that dropping it there costs nothing. What host memory evicts, the least wanted by its order, is written to SSD and stays there until SSD
 * evicts it: used again and evicted again it is not written twice. What is read of SSD is copied to host memory too.
 * Whoever listens hears of a block when the first of the three has it and when the last of them loses it; and of one that SSD alone has.
 */
export class LowerTiers implements BlockListener {
  readonly host: BlockTier;
  readonly ssd: BlockTier | undefined;
  readonly #onDevice: (words: Uint32Array, at: number) => boolean;
  /** Hears of what all tiers together hold. */
  listener: TierListener | undefined;
  /** Slots of host memory that are being read: by the step that runs the first `#readNow`, by the one after it the others. */
  readonly #reading = new Int32List();
  #readNow = 0;
  readonly moves: TierMoves | undefined;
  readonly #writes: SsdWrites;
  /** Slots of host memory that somebody brings contents for. */
  #expected = 0;
  #newReads = 0;
  readonly #reads = [0, 0, 0];

  /** @param onDevice does device memory hold the block of the digest at `words[at..at+4]`? */
  constructor(config: LowerTiersConfig, onDevice: (words: Uint32Array, at: number) => boolean) {
    const { hostBlocks, ssdBlocks, eviction, moves } = config;
    this.#onDevice = onDevice;
    this.host = new BlockTier(hostBlocks, eviction, (words, at, depth, above) =>
      this.#leftHost(words, at, depth, above),
    );
    if (ssdBlocks > 0) this.ssd = new BlockTier(ssdBlocks, eviction, (words, at) => this.#leftSsd(words, at));
    this.moves = moves;
    this.#writes = new SsdWrites(this.host, this.ssd, moves);
  }

  /** Blocks that would have gone to SSD, but too many were on their way. */
  get lost(): number {
    return this.#writes.lost;
  }

  /** What device memory holds has changed. */
  record(words: Uint32Array, at: number, stored: boolean, depth: number, block?: BlockId): void {
    // Most that comes and goes there is or was here: one look tells.
    const known = this.host.find(words, at);
    const slot = known === undefined && stored ? this.host.put(words, at, depth) : known;
    if (slot !== undefined) this.host.setAbove(slot, stored);
    if (known !== undefined) return;
    if (slot !== undefined) this.#stored(slot, block);
    if (this.ssd?.expects(words, at) === true) this.listener?.sank(words, at, !stored);
    else this.listener?.record(words, at, stored, depth);
  }

  /** The chain's blocks `from..to`, computed by a sequence whose own ones may move away, are copied at once: device memory has them under no name. */
  keep({ words }: BlockChain, from: number, to: number, blockAt: (index: number) => BlockId): void {
    for (let index = from; index < to; index++) {
      const at = index * digestWords;
      if (this.#onDevice(words, at)) continue;
      this.record(words, at, true, index + 1, blockAt(index));
      this.record(words, at, false, 0);
    }
  }

  #stored(slot: SlotId, block: BlockId | undefined): void {
    if (block !== undefined) this.moves?.store(block, slot);
    this.#writes.stored(slot);
  }

  /** SSD holds blocks from before: (blocks, 6) slot, depth and digest, those written first first. While nothing else is held. */
  restore(blocks: Uint32Array): void {
    this.ssd?.restore(blocks);
    this.ssd?.forEach((words, at) => {
      this.listener?.record(words, at, true, 0);
      this.listener?.sank(words, at, true);
    });
  }

  /** Blocks touched between two ticks count as used at once. */
  tick(): void {
    this.host.tick();
    this.ssd?.tick();
  }

  /** A sequence uses the chain's first `blocks` blocks, wherever they are. */
  touch(chain: BlockChain, blocks: number): void {
    this.tick();
    // The end goes before the start.
    for (let i = blocks - 1; i >= 0; i--) {
      const slot = this.host.find(chain.words, i * digestWords);
      if (slot !== undefined) this.host.touch(slot);
      const written = this.ssd?.find(chain.words, i * digestWords);
      if (written !== undefined) this.ssd?.touch(written);
    }
  }

  /** Blocks of the chain from `from` on, before `to`, that host memory holds without a gap: where they end. */
  inHost(chain: BlockChain, from: number, to: number): number {
    let end = from;
    while (end < to && this.host.find(chain.words, end * digestWords) !== undefined) end++;
    return end;
  }

  /** Host memory's blocks `from..to` of the chain, which must be there, are being read until the `readEnded` of the step that begins next: by a sequence that starts, or `again`. */
  read(chain: BlockChain, from: number, to: number, again: boolean): void {
    for (let i = from; i < to; i++) {
      const slot = this.host.find(chain.words, i * digestWords);
      if (slot === undefined) throw new Error(`Cannot load a block: host memory does not hold it: block ${i}`);
      this.host.pin(slot);
      this.#reading.push(slot);
      if (!again) this.#reads[this.host.takeTag(slot)]++;
    }
    this.#newReads += to - from;
  }

  /** The contents of the chain's block at `index`, which is being read, go to a block of the pool. */
  load(chain: BlockChain, index: number, block: BlockId): void {
    const slot = this.host.find(chain.words, index * digestWords);
    if (slot !== undefined) this.moves?.load(slot, block, digestAt(chain.words, index * digestWords));
  }

  /** (slots, layers): pages of slots of host memory, where contents are real. */
  pagesIn(slots: readonly SlotId[]): Int32Array {
    return this.moves?.pagesOfSlots(slots) ?? new Int32Array(0);
  }

  /** Blocks came to the pool itself. */
  cameToPool(blocks: number, origin: BlockOrigin): void {
    this.#reads[origins.indexOf(origin)] += blocks;
  }

  /** Blocks of which `read` was told since the last call. */
  takeReads(): number {
    const blocks = this.#newReads;
    this.#newReads = 0;
    return blocks;
  }

  /** Blocks that have been read of host memory: those that had come from SSD or another instance since by that, the others by host memory itself. */
  get reads(): Readonly<Record<BlockOrigin, number>> {
    const [host = 0, ssd = 0, instance = 0] = this.#reads;
    return { host, ssd, instance };
  }

  /** A step begins, which reads all that is to be read of host memory. */
  readBegins(): void {
    this.#readNow = this.#reading.length;
  }

  /** It has ended: what was being read of host memory has been, or will not be. */
  readEnded(): void {
    for (let i = this.#readNow - 1; i >= 0; i--) this.host.unpin(this.#reading.at(i));
    this.#reading.shift(this.#readNow);
    this.#readNow = 0;
  }

  /** Room in host memory for the chain's block at `index`, until `arrived` or `givenUp`. Undefined when it is there, or another brings it. */
  expect(chain: BlockChain, index: number): SlotId | 'full' | undefined {
    if (this.host.expects(chain.words, index * digestWords)) return undefined;
    const slot = this.host.take(chain.words, index * digestWords, index + 1);
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
    this.#writes.stored(slot);
    if (!above && this.ssd?.expects(digests, at) === true) this.listener?.sank(digests, at, false);
    else if (!above) this.listener?.record(digests, at, true, 0);
    this.host.fit();
  }

  givenUp(slot: SlotId): void {
    this.#expected--;
    this.host.drop(slot);
  }

  /** Blocks of the chain from `from` on, before `to`, that host memory or SSD holds without a gap: where they end. */
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
   * Those of the chain's blocks `from..to` that SSD has and host memory has not, or all where they come to the pool: they are being read until
   * `readOfSsd`. Contents go where there is `room` for the block in host memory; they end where a block was lost to make that room.
   */
  readSsd(chain: BlockChain, from: number, to: number, room: Pick<PrefixReceiveBuffer, 'slot' | 'inPool'>): SsdRead {
    const blocks: SsdBlock[] = [];
    for (let i = from; i < to; i++) {
      const at = i * digestWords;
      const isWanted = room.inPool || this.host.find(chain.words, at) === undefined;
      const slot = isWanted ? this.ssd?.find(chain.words, at) : undefined;
      const into = this.moves === undefined || room.inPool ? undefined : room.slot(i);
      if (slot === undefined && (into !== undefined || room.inPool)) return { blocks, to: i };
      // Somebody else brings it, where there is nowhere to bring it to.
      if (slot === undefined || (into === undefined && this.moves !== undefined && !room.inPool)) continue;
      this.ssd?.pin(slot);
      const page = into === undefined ? 0 : (this.moves?.pageOf(into) ?? 0);
      blocks.push({ slot, page, depth: i + 1, digest: digestAt(chain.words, at) });
    }
    return { blocks, to };
  }

  /** `bad`: the slot that did not hold what it should. */
  readOfSsd(blocks: readonly SsdBlock[], bad?: SlotId): void {
    for (const { slot } of blocks) this.ssd?.unpin(slot);
    if (bad === undefined || this.ssd === undefined || this.ssd.isPinned(bad)) return;
    this.ssd.drop(bad);
    // The slot is free, and its digest stays until it is taken anew.
    this.#tellGone(this.ssd.digests, bad * digestWords);
  }

  /** What has begun to go to SSD since the last call. */
  takeWrites(): BegunWrites {
    return this.#writes.take();
  }

  /** The oldest `blocks` writes have ended: no more than are under way. `failed`: those of them, by number, that could not be written. */
  written(blocks: number, failed: readonly number[] = []): void {
    for (const slot of this.#writes.written(blocks, failed)) this.#dropOfSsd(slot);
  }

  #dropOfSsd(slot: SlotId): void {
    if (this.ssd === undefined) return;
    this.ssd.drop(slot);
    this.moves?.erase(slot);
    this.#tellGone(this.ssd.digests, slot * digestWords);
  }

  /** Drops the chain's first `blocks` blocks, whose contents are suspect, as far as nobody needs them. */
  forget(chain: BlockChain, blocks: number): void {
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
      this.#writes.doubt(chain.words, at);
      if (dropped) this.#tellGone(chain.words, at);
    }
  }

  /** (blocks, 4 words): the digests `here`, of all that device memory holds, and those that only a lower tier has. */
  withBelow(here: Uint32Array): Uint32Array {
    const below: number[] = [];
    const add = (words: Uint32Array, at: number) => {
      for (let i = 0; i < digestWords; i++) below.push(words[at + i]);
    };
    this.host.forEach((words, at) => {
      if (this.host.find(words, at) !== undefined && !this.#onDevice(words, at)) add(words, at);
    });
    this.ssd?.forEach((words, at) => {
      if (this.host.find(words, at) === undefined && !this.#onDevice(words, at)) add(words, at);
    });
    const all = new Uint32Array(here.length + below.length);
    all.set(here);
    all.set(below, here.length);
    return all;
  }

  /** Blocks that SSD alone holds: the last of `withBelow`. */
  get sunk(): number {
    let blocks = 0;
    this.ssd?.forEach((words, at) => {
      if (this.host.find(words, at) === undefined && !this.#onDevice(words, at)) blocks++;
    });
    return blocks;
  }

  /** Does one of them hold it, or will SSD? */
  holds(words: Uint32Array, at: number): boolean {
    return this.host.find(words, at) !== undefined || this.ssd?.expects(words, at) === true;
  }

  #leftHost(words: Uint32Array, at: number, depth: number, onDevice: boolean): void {
    this.#writes.left(words, at, depth);
    if (onDevice) return;
    if (this.ssd?.expects(words, at) === true) this.listener?.sank(words, at, true);
    else this.listener?.record(words, at, false, 0);
  }

  #leftSsd(words: Uint32Array, at: number): void {
    this.#tellGone(words, at);
  }

  /** A tier has it no more. */
  #tellGone(words: Uint32Array, at: number): void {
    if (this.listener === undefined || this.host.find(words, at) !== undefined || this.#onDevice(words, at)) return;
    if (this.ssd?.expects(words, at) === true) this.listener.sank(words, at, true);
    else this.listener.record(words, at, false, 0);
  }

  /** Throws unless both tiers are sound and everything on its way is somebody's. */
  check(): void {
    this.host.check();
    this.ssd?.check();
    this.host.forEach((words, at) => {
      const slot = this.host.find(words, at);
      if (slot !== undefined && this.host.isAbove(slot) !== this.#onDevice(words, at))
        throw new Error(`Tiers broken: device memory holds the block of slot ${slot}: ${!this.host.isAbove(slot)}`);
    });
    if (this.host.arriving !== this.#expected)
      throw new Error(`Tiers broken: ${this.host.arriving} blocks come to host memory, ${this.#expected} are brought`);
    if (this.#writes.underWay !== (this.ssd?.arriving ?? 0))
      throw new Error(`Tiers broken: ${this.ssd?.arriving} blocks come to SSD, ${this.#writes.underWay} are written`);
  }
}
