// In which cache a waiting sequence starts, where an instance has one for each attention worker.
import { type BlockCache, LastMatch } from '../../kvcache/block-cache.ts';
import type { KvCaches } from '../../kvcache/kv-caches.ts';
import type { Sequence } from './sequence.ts';

/** An attention worker, and the sequence to place. */
export interface PlacementOption {
  readonly worker: number;
  /** Tokens with keys and values of the running sequences there. */
  readonly heldTokens: number;
  /** Tokens of the sequence's prefix in the cache there. */
  readonly cachedTokens: number;
  /** The sequence fits beside the running ones. */
  readonly fits: boolean;
}

/** Chooses the worker; undefined: none can take the sequence. */
export type SequencePlacement = (options: readonly PlacementOption[]) => number | undefined;

/** Blocks of the sequence's longest reusable prefix in any cache. */
export function reusablePrefix(caches: KvCaches, sequence: Sequence): number {
  const { chain, known } = sequence;
  const blocksMax = sequence.reusableBlocks(caches.first.blockTokens);
  if (caches.all.length === 1) return caches.first.match(chain, blocksMax, known);
  return Math.max(...caches.all.map((cache) => cache.match(chain, blocksMax)));
}

export function placementOptions(
  caches: KvCaches,
  sequence: Sequence,
  running: readonly Sequence[],
  fits: (worker: number) => boolean,
): readonly PlacementOption[] {
  const held = heldTokens(caches, running);
  return caches.all.map((cache, worker) => ({
    worker,
    heldTokens: held[worker],
    cachedTokens: cachedTokens(cache, sequence),
    fits: fits(worker),
  }));
}

/** The caches that fit a prompt of which pages are received. Prompts that are being received count as held. */
export function receiveOptions(
  caches: KvCaches,
  running: readonly Sequence[],
  fits: (worker: number) => boolean,
): readonly PlacementOption[] {
  const held = heldTokens(caches, running);
  for (const [worker, { receivePages, blockPages, blockTokens }] of caches.all.entries())
    held[worker] += ((receivePages.total - receivePages.free) / blockPages) * blockTokens;
  const workers = [...caches.all.keys()].filter(fits);
  return workers.map((worker) => ({ worker, heldTokens: held[worker], cachedTokens: 0, fits: true }));
}

function heldTokens(caches: KvCaches, running: readonly Sequence[]): Float64Array {
  const held = new Float64Array(caches.all.length);
  for (const { worker, computed } of running) held[worker] += computed;
  return held;
}

function cachedTokens(cache: BlockCache, sequence: Sequence): number {
  const blocks = cache.match(sequence.chain, sequence.reusableBlocks(cache.blockTokens), new LastMatch());
  return blocks * cache.blockTokens;
}
