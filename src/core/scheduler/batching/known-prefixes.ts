// What a sequence that waits would find of its prefix, or will find soon.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { BlockClaims } from './block-claims.ts';
import type { Sequence } from './sequence.ts';

/** How far behind a long prompt short ones are looked for. */
export const lookAhead = 32;

export class KnownPrefixes {
  readonly #cache: BlockCache;
  readonly #claims: BlockClaims;

  constructor(cache: BlockCache, claims: BlockClaims) {
    this.#cache = cache;
    this.#claims = claims;
  }

  /** Tokens still to compute, counting what the cache holds for one that waits. */
  restOf(sequence: Sequence): number {
    if (sequence.state === 'running') return sequence.remaining;
    if (sequence.landed > 0) return sequence.remaining - sequence.landed;
    const { blockTokens } = this.#cache;
    if (sequence.arriving !== undefined) return sequence.remaining - sequence.arriving.blocks * blockTokens;
    const reusable = sequence.reusableBlocks(blockTokens);
    return sequence.remaining - this.#cache.match(sequence.chain, reusable, sequence.known) * blockTokens;
  }

  /** Nobody is to share what it computes from now on, nor what only it holds behind its first `stay` blocks: from `sharedBlocks` on that is so. */
  disown(sequence: Sequence, stay: number): void {
    const { sharedBlocks, table, computed } = sequence;
    if (sharedBlocks === undefined) this.#claims.advance(sequence, sequence.claimedTo);
    const end = sharedBlocks ?? Math.floor(computed / this.#cache.blockTokens);
    if (end > stay || sharedBlocks === undefined) sequence.sharedBlocks = this.#cache.makePrivate(table, end, stay);
  }

  /** It gives back what it has: what is here from its beginning on may be shared again. */
  reown({ sharedBlocks, awayBlocks, awayFrom, chain, table, computed }: Sequence): void {
    if (sharedBlocks === undefined) return;
    const end = awayBlocks > 0 ? awayFrom : Math.floor(computed / this.#cache.blockTokens);
    table.groups[0].first = 0;
    this.#cache.commit(chain, sharedBlocks, Math.min(end, chain.blocks), table);
  }

  /** Is there one of the same priority close behind, in either list, that needs at most `rows`? */
  shortBehind(
    sequence: Sequence,
    rows: number,
    running: readonly Sequence[],
    nextRunning: number,
    waiting: readonly Sequence[],
    nextWaiting: number,
  ): boolean {
    const isShort = (other: Sequence | undefined): boolean =>
      other !== undefined &&
      other.priority === sequence.priority &&
      other.waitsForBlock === undefined &&
      !other.loading &&
      this.restOf(other) <= rows;
    const behind = Math.min(lookAhead, Math.max(running.length - nextRunning, waiting.length - nextWaiting));
    for (let i = 0; i < behind; i++) {
      if (isShort(running[nextRunning + i]) || isShort(waiting[nextWaiting + i])) return true;
    }
    return false;
  }

  /** Does a waiting sequence wait for a block that another computes, or that comes from elsewhere? */
  isAwaited(sequence: Sequence): boolean {
    if (sequence.loading) return true;
    if (sequence.landed > 0 || sequence.arriving !== undefined) return false;
    const awaited = sequence.waitsForBlock;
    if (awaited !== undefined && this.#claims.isPromised(sequence, awaited)) return true;
    const reusable = sequence.reusableBlocks(this.#cache.blockTokens);
    const known = this.#cache.match(sequence.chain, reusable, sequence.known);
    sequence.waitsForBlock = this.#claims.lastPromised(sequence, known, reusable);
    return sequence.waitsForBlock !== undefined;
  }
}
