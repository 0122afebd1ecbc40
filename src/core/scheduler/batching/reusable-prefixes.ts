// The part of its prefix that a waiting sequence finds in the cache, now or once other sequences have computed it.
import type { KvCaches } from '../../kvcache/kv-caches.ts';
import type { BlockClaims } from './block-claims.ts';
import type { Sequence } from './sequence.ts';
import { reusablePrefix } from './sequence-placement.ts';

/** Number of sequences after a long prompt that are searched for short ones. */
export const lookAhead = 32;

export class ReusablePrefixes {
  readonly #caches: KvCaches;
  readonly #blockTokens: number;
  readonly #claims: BlockClaims;

  constructor(caches: KvCaches, claims: BlockClaims) {
    this.#caches = caches;
    this.#blockTokens = caches.first.blockTokens;
    this.#claims = claims;
  }

  /** Tokens still to compute; for a waiting sequence, without those in the cache. */
  remainingTokens(sequence: Sequence): number {
    if (sequence.state === 'running') return sequence.remaining;
    if (sequence.receivedTokens > 0) return sequence.remaining - sequence.receivedTokens;
    const blocks = sequence.arriving?.blocks ?? reusablePrefix(this.#caches, sequence);
    return sequence.remaining - blocks * this.#blockTokens;
  }

  /**
   * Stops sharing the blocks that the sequence computes from now on, and the blocks after its first `stay` that only it
   * references. Sets `sharedBlocks` to the first such block.
   */
  makePrivate(sequence: Sequence, stay: number): void {
    const { sharedBlocks, table, computed } = sequence;
    if (sharedBlocks === undefined) this.#claims.advance(sequence, sequence.claimedTo);
    const end = sharedBlocks ?? Math.floor(computed / this.#blockTokens);
    if (end > stay || sharedBlocks === undefined)
      sequence.sharedBlocks = this.#caches.of(sequence).makePrivate(table, end, stay);
  }

  /** The sequence releases its blocks: its leading local blocks become shareable again. */
  makeShareable(sequence: Sequence): void {
    const { sharedBlocks, remoteBlocks, remoteFrom, chain, table, computed } = sequence;
    if (sharedBlocks === undefined) return;
    const end = remoteBlocks > 0 ? remoteFrom : Math.floor(computed / this.#blockTokens);
    table.groups[0].first = 0;
    this.#caches.of(sequence).cacheBlocks(chain, sharedBlocks, Math.min(end, chain.blocks), table);
  }

  /** True if a sequence of the same priority follows closely in either list and requires at most `rows`. */
  hasShortBehind(
    sequence: Sequence,
    rows: number,
    running: readonly Sequence[],
    nextRunning: number,
    waiting: readonly Sequence[],
    nextWaiting: number,
  ): boolean {
    const { priority } = sequence;
    const behind = Math.min(lookAhead, Math.max(running.length - nextRunning, waiting.length - nextWaiting));
    for (let i = 0; i < behind; i++) {
      if (this.#isShort(running[nextRunning + i], priority, rows)) return true;
      if (this.#isShort(waiting[nextWaiting + i], priority, rows)) return true;
    }
    return false;
  }

  #isShort(sequence: Sequence | undefined, priority: number, rows: number): boolean {
    return (
      sequence !== undefined &&
      sequence.priority === priority &&
      sequence.waitsForBlock === undefined &&
      !sequence.loading &&
      !sequence.waitsForGrammar &&
      this.remainingTokens(sequence) <= rows
    );
  }

  /** True if the waiting sequence must wait for its grammar, or for a block that another one computes or that is in transit. */
  mustWait(sequence: Sequence): boolean {
    if (sequence.loading || sequence.waitsForGrammar) return true;
    if (sequence.receivedTokens > 0 || sequence.arriving !== undefined) return false;
    const pending = sequence.waitsForBlock;
    if (pending !== undefined && this.#claims.isPending(sequence, pending)) return true;
    const known = reusablePrefix(this.#caches, sequence);
    sequence.waitsForBlock = this.#claims.lastPending(sequence, known, sequence.reusableBlocks(this.#blockTokens));
    return sequence.waitsForBlock !== undefined;
  }
}
