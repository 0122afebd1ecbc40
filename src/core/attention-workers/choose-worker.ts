// How KV is divided over attention workers, and which one gets a sequence that lies whole at one.
import type { PlacementOption } from '../scheduler/batching/sequence-placement.ts';

/**
 * `heads`: each attention worker has an equal shard of the KV heads of every block. `requests`: a sequence lies whole at
 * one of them.
 */
export const kvPartitions = ['heads', 'requests'] as const;
export type KvPartition = (typeof kvPartitions)[number];

/**
 * Tokens of imbalance that one cached token is worth. Attention over a token is computed in each step of the sequence,
 * a cached token saves its computation once.
 */
export const prefixWeight = 4;

/**
 * The worker with the fewest held tokens, less `prefixWeight` for each cached token of the sequence; the lowest number
 * among equals. So a sequence goes to the worker with the longest part of its prefix, unless that one holds too many
 * tokens more than another. Workers where the sequence does not fit are chosen only if it fits at none. Undefined
 * without options.
 */
export function chooseWorker(options: readonly PlacementOption[]): number | undefined {
  let best: PlacementOption | undefined;
  for (const option of options) if (best === undefined || isBetter(option, best)) best = option;
  return best?.worker;
}

function isBetter(a: PlacementOption, b: PlacementOption): boolean {
  if (a.fits !== b.fits) return a.fits;
  const difference = costOf(a) - costOf(b);
  return difference === 0 ? a.worker < b.worker : difference < 0;
}

function costOf({ heldTokens, cachedTokens }: PlacementOption): number {
  return heldTokens - prefixWeight * cachedTokens;
}
