// Which blocks of host memory are written to SSD, and when.
import { digestWords } from '../../../util/blake2s.ts';
import { Int32List } from '../../../util/int32-list.ts';
import type { SlotId } from '../../protocol/ids.ts';
import type { SsdBlock } from '../../protocol/kv-events.ts';
import type { BlockTier } from './block-tier.ts';
import { digestAt, type TierMoves } from './tier-moves.ts';

/** Blocks on their way from host memory to SSD at once, at most. What goes beyond waits, or is lost where it lies in buffers of their own. */
const writingMax = 64;

/** Of host memory, what may be pinned because it is being written. */
const writingShare = 1 / 4;

/** What has begun to go to SSD. */
export interface BegunWrites {
  readonly count: number;
  /** What each is, where contents are real. */
  readonly blocks: readonly SsdBlock[] | undefined;
}

/**
 * Without real contents a block is written when host memory evicts it. With them as soon as there is time, so that it is on SSD whatever
 * happens, and lies still in host memory meanwhile: nothing is copied besides.
 */
export class SsdWrites {
  readonly #host: BlockTier;
  readonly #ssd: BlockTier | undefined;
  readonly #moves: TierMoves | undefined;
  /** Slots of SSD that are being written, in order; the first `#begun` have been told of. */
  readonly #writes = new Int32List();
  #begun = 0;
  /** Slots of host memory that they come from, where contents are real. */
  readonly #sources = new Int32List();
  /** Slots of host memory that are to be written, oldest first: what they hold by then. */
  readonly #waiting: SlotId[] = [];
  /** Of those that are being written: nobody is to have them. */
  readonly #doubtful = new Set<SlotId>();
  readonly #writingMax: number;
  #lost = 0;

  constructor(host: BlockTier, ssd: BlockTier | undefined, moves: TierMoves | undefined) {
    this.#host = host;
    this.#ssd = ssd;
    this.#moves = moves;
    const pinnedMax = moves === undefined ? writingMax : Math.ceil(host.capacity * writingShare);
    this.#writingMax = Math.min(writingMax, pinnedMax);
  }

  /** Blocks that would have gone to SSD, but too many were on their way. */
  get lost(): number {
    return this.#lost;
  }

  get underWay(): number {
    return this.#writes.length;
  }

  /** Host memory has come to hold a block. */
  stored(slot: SlotId): void {
    if (this.#moves !== undefined && this.#ssd !== undefined) this.#waiting.push(slot);
  }

  /** Host memory has evicted a block. */
  left(words: Uint32Array, at: number, depth: number): void {
    const ssd = this.#ssd;
    if (ssd === undefined || ssd.expects(words, at)) return;
    const slot =
      this.#moves === undefined && this.#writes.length < this.#writingMax ? ssd.take(words, at, depth) : undefined;
    if (slot === undefined) this.#lost++;
    else this.#writes.push(slot);
  }

  /** What has begun since the last call, oldest first: each is there once `written` has been called for it. */
  take(): BegunWrites {
    const blocks = this.#moves === undefined ? undefined : this.#begin(this.#moves);
    const count = this.#writes.length - this.#begun;
    this.#begun = this.#writes.length;
    return { count, blocks };
  }

  #begin(moves: TierMoves): readonly SsdBlock[] {
    const blocks: SsdBlock[] = [];
    let next = 0;
    for (; next < this.#waiting.length && this.#writes.length < this.#writingMax; next++) {
      const source = this.#waiting[next] as SlotId;
      const block = this.#beginOne(source, moves);
      if (block !== undefined) blocks.push(block);
    }
    this.#waiting.splice(0, next);
    return blocks;
  }

  /** Undefined where nothing is to be written: the slot holds nothing any more, or what SSD has. */
  #beginOne(source: SlotId, moves: TierMoves): SsdBlock | undefined {
    const { digests } = this.#host;
    const at = source * digestWords;
    if (this.#host.find(digests, at) !== source || this.#ssd?.expects(digests, at) !== false) return undefined;
    const depth = this.#host.depth(source);
    const slot = this.#ssd.take(digests, at, depth);
    if (slot === undefined) return undefined;
    this.#host.pin(source);
    this.#writes.push(slot);
    this.#sources.push(source);
    return { slot, page: moves.pageOf(source), depth, digest: digestAt(digests, at) };
  }

  /** The oldest `blocks` writes have ended: no more than are under way. `failed`: which of them, by number, are not there. Returns the slots of SSD that hold nothing. */
  written(blocks: number, failed: readonly number[]): readonly SlotId[] {
    const ended = Math.min(blocks, this.#begun);
    const empty: SlotId[] = [];
    for (let i = 0; i < ended; i++) {
      const slot = this.#writes.at(i);
      const doubtful = this.#doubtful.delete(slot);
      if (doubtful || failed.includes(i)) empty.push(slot);
      else this.#ssd?.arrived(slot);
      if (this.#moves !== undefined) this.#letGo(this.#sources.at(i), doubtful);
    }
    this.#writes.shift(ended);
    if (this.#moves !== undefined) this.#sources.shift(ended);
    this.#begun -= ended;
    return empty;
  }

  #letGo(source: SlotId, doubtful: boolean): void {
    this.#host.unpin(source);
    if (doubtful && !this.#host.isPinned(source)) this.#host.drop(source);
  }

  /** What is being written of this block is suspect. */
  doubt(words: Uint32Array, at: number): void {
    if (this.#moves === undefined || this.#ssd === undefined) return;
    for (let i = 0; i < this.#writes.length; i++) {
      const slot = this.#writes.at(i);
      let same = true;
      for (let w = 0; w < digestWords; w++) same &&= this.#ssd.digests[slot * digestWords + w] === words[at + w];
      if (same) this.#doubtful.add(slot);
    }
  }
}
