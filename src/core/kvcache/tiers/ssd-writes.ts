// Schedules the writes of blocks from host memory to SSD.
import { digestWords } from '../../../util/blake2s.ts';
import { Int32List } from '../../../util/int32-list.ts';
import type { SlotId } from '../../protocol/ids.ts';
import type { SsdBlock } from '../../protocol/kv-events.ts';
import type { BlockTier } from './block-tier.ts';
import { digestAt, type TierMoves } from './tier-moves.ts';

/**
 * Maximum number of blocks being written to SSD. Further blocks wait, or are lost if host memory evicts them first.
 */
const writingMax = 64;

/** Share of host memory that running writes may pin. */
const writingShare = 1 / 4;

/** Writes that have started. */
export interface StartedWrites {
  readonly count: number;
  /** The blocks, where contents are real. */
  readonly blocks: readonly SsdBlock[] | undefined;
}

/**
 * Without real contents, a block is written when host memory evicts it. With them, it is written as soon as possible,
 * so that SSD has it early. Host memory keeps the block during the write, and nothing is copied.
 */
export class SsdWrites {
  readonly #host: BlockTier;
  readonly #ssd: BlockTier | undefined;
  readonly #moves: TierMoves | undefined;
  /** Slots of SSD being written, in order; the first `#started` have been returned by `take`. */
  readonly #writes = new Int32List();
  #started = 0;
  /** Slots of host memory with the contents of these writes, where contents are real. */
  readonly #sources = new Int32List();
  /** Slots of host memory to be written, oldest first. Their contents are read when the write starts. */
  readonly #waiting: SlotId[] = [];
  /** Slots of SSD being written with suspect contents: their writes are discarded. */
  readonly #suspect = new Set<SlotId>();
  readonly #writingMax: number;
  #lost = 0;

  constructor(host: BlockTier, ssd: BlockTier | undefined, moves: TierMoves | undefined) {
    this.#host = host;
    this.#ssd = ssd;
    this.#moves = moves;
    const pinnedMax = moves === undefined ? writingMax : Math.ceil(host.capacity * writingShare);
    this.#writingMax = Math.min(writingMax, pinnedMax);
  }

  /** Blocks lost because too many writes were running. */
  get lostBlocks(): number {
    return this.#lost;
  }

  get running(): number {
    return this.#writes.length;
  }

  /** Host memory has stored a block. */
  storedInHost(slot: SlotId): void {
    if (this.#moves !== undefined && this.#ssd !== undefined) this.#waiting.push(slot);
  }

  /** Host memory has evicted a block. */
  evictedFromHost(words: Uint32Array, at: number, depth: number): void {
    const ssd = this.#ssd;
    if (ssd === undefined || ssd.contains(words, at)) return;
    const slot =
      this.#moves === undefined && this.#writes.length < this.#writingMax ? ssd.allocate(words, at, depth) : undefined;
    if (slot === undefined) this.#lost++;
    else this.#writes.push(slot);
  }

  /** Writes started since the last call, oldest first. A block is readable once `ended` counts it. */
  take(): StartedWrites {
    const blocks = this.#moves === undefined ? undefined : this.#start(this.#moves);
    const count = this.#writes.length - this.#started;
    this.#started = this.#writes.length;
    return { count, blocks };
  }

  #start(moves: TierMoves): readonly SsdBlock[] {
    const blocks: SsdBlock[] = [];
    let next = 0;
    for (; next < this.#waiting.length && this.#writes.length < this.#writingMax; next++) {
      const source = this.#waiting[next] as SlotId;
      const block = this.#startOne(source, moves);
      if (block !== undefined) blocks.push(block);
    }
    this.#waiting.splice(0, next);
    return blocks;
  }

  /** Undefined if there is nothing to write: the slot is empty, or SSD has the block. */
  #startOne(source: SlotId, moves: TierMoves): SsdBlock | undefined {
    const { digests } = this.#host;
    const at = source * digestWords;
    if (this.#host.find(digests, at) !== source || this.#ssd?.contains(digests, at) !== false) return undefined;
    const depth = this.#host.depth(source);
    const slot = this.#ssd.allocate(digests, at, depth);
    if (slot === undefined) return undefined;
    this.#host.pin(source);
    this.#writes.push(slot);
    this.#sources.push(source);
    return { slot, page: moves.pageOf(source), depth, digest: digestAt(digests, at) };
  }

  /**
   * The oldest `blocks` writes have ended, at most all running ones. `failed`: indices of failed writes among them.
   * Returns the slots of SSD without valid contents.
   */
  ended(blocks: number, failed: readonly number[]): readonly SlotId[] {
    const ended = Math.min(blocks, this.#started);
    const empty: SlotId[] = [];
    for (let i = 0; i < ended; i++) {
      const slot = this.#writes.at(i);
      const suspect = this.#suspect.delete(slot);
      if (suspect || failed.includes(i)) empty.push(slot);
      else this.#ssd?.arrived(slot);
      if (this.#moves !== undefined) this.#release(this.#sources.at(i), suspect);
    }
    this.#writes.shift(ended);
    if (this.#moves !== undefined) this.#sources.shift(ended);
    this.#started -= ended;
    return empty;
  }

  #release(source: SlotId, suspect: boolean): void {
    this.#host.unpin(source);
    if (suspect && !this.#host.isPinned(source)) this.#host.drop(source);
  }

  /** The contents of this block are suspect, also in running writes. */
  markSuspect(words: Uint32Array, at: number): void {
    if (this.#moves === undefined || this.#ssd === undefined) return;
    for (let i = 0; i < this.#writes.length; i++) {
      const slot = this.#writes.at(i);
      let same = true;
      for (let w = 0; w < digestWords; w++) same &&= this.#ssd.digests[slot * digestWords + w] === words[at + w];
      if (same) this.#suspect.add(slot);
    }
  }
}
