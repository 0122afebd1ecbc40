// Blocks that the running step computes and host memory copies layer by layer (Mooncake, section 5.2).
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { BlockIds } from '../whole-groups.ts';
import type { BlockTier } from './block-tier.ts';
import type { SlotBlock, TierMoves } from './tier-moves.ts';

/** The chain's blocks `from..to`, which the next step completes. */
export interface ComputedBlocks {
  readonly chain: BlockChain;
  readonly from: number;
  readonly to: number;
  /** Ids of a block in all layer groups, by its index in the chain. */
  idsOf(index: number): BlockIds;
}

/**
 * A slot is reserved when the step is launched, and holds the block once the step's result is committed: until then the
 * block is in no index. If the step is aborted, or the sequence fails in it, the slot becomes free again. Only where
 * contents are real.
 */
export class ComputedStores {
  readonly #host: BlockTier;
  readonly #moves: TierMoves | undefined;
  readonly #onDevice: (words: Uint32Array, at: number) => boolean;
  /** The block that is copied to each reserved slot, by its reported id. */
  readonly #blocks = new Map<SlotId, BlockId | undefined>();

  constructor(host: BlockTier, moves: TierMoves | undefined, onDevice: (words: Uint32Array, at: number) => boolean) {
    this.#host = host;
    this.#moves = moves;
    this.#onDevice = onDevice;
  }

  /** Reserved slots. */
  get size(): number {
    return this.#blocks.size;
  }

  /** Reserves slots until host memory is full: further blocks are copied when they are recorded, if there is a slot then. */
  begin(computed: readonly ComputedBlocks[]): void {
    const blocks = computed.flatMap((one) => this.#reserve(one));
    if (blocks.length > 0) this.#moves?.storeComputed(blocks);
  }

  #reserve({ chain, from, to, idsOf }: ComputedBlocks): SlotBlock[] {
    const reserved: SlotBlock[] = [];
    for (let index = from; index < to; index++) {
      const at = index * digestWords;
      if (this.#onDevice(chain.words, at) || this.#host.contains(chain.words, at)) continue;
      const slot = this.#host.allocate(chain.words, at, index + 1);
      if (slot === undefined) break;
      const ids = idsOf(index);
      this.#blocks.set(slot, this.#moves?.reportedId(ids));
      reserved.push({ slot, ids });
    }
    return reserved;
  }

  /**
   * The step has computed the digest at `words[at..at+4]` in this block. Its slot; undefined if none was reserved, or if
   * the slot has the copy of another sequence with an equal block, which may have failed.
   */
  commit(words: Uint32Array, at: number, block: BlockId): SlotId | undefined {
    if (this.#blocks.size === 0) return undefined;
    const slot = this.#host.findArriving(words, at);
    if (slot === undefined || !this.#blocks.has(slot)) return undefined;
    const copied = this.#blocks.get(slot);
    this.#blocks.delete(slot);
    if (copied !== block) {
      this.#host.drop(slot);
      return undefined;
    }
    this.#host.arrived(slot);
    return slot;
  }

  /** Frees the slots of blocks that were not committed. */
  end(): void {
    if (this.#blocks.size === 0) return;
    for (const slot of this.#blocks.keys()) this.#host.drop(slot);
    this.#blocks.clear();
    this.#host.evictToFit();
  }
}
