// How much memory KV pages get when nobody says.
import { totalmem } from 'node:os';
import { pagesFor } from '../../core/kvcache/layer-groups.ts';
import type { KvShape } from '../../engine/load-model.ts';
import { pageTokens } from '../../util/step.ts';

/** Longest contexts that fit beside one another. */
const contextsAtOnce = 2;
const leastBytes = 256 * 2 ** 20;

/**
 * Two of the longest contexts, at least 256 MB, at most an instance's share of half of the machine's memory. Pages take memory only once
 * they are used.
 */
export function defaultKvBytes(kv: KvShape, contextTokens: number, instances: number): number {
  const contextBytes = pagesFor(kv.groups, contextTokens, pageTokens) * kv.pageBytes;
  return Math.min(totalmem() / 2 / instances, Math.max(leastBytes, contextsAtOnce * contextBytes));
}
