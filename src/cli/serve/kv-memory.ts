// The default size of KV memory.
import { totalmem } from 'node:os';
import { pagesFor } from '../../core/kvcache/layer-groups.ts';
import type { KvShape } from '../../engine/load-model.ts';
import { pageTokens } from '../../util/step.ts';

/** Number of longest contexts that fit. */
const contextsAtOnce = 2;
const leastBytes = 256 * 2 ** 20;

/**
 * Two of the longest contexts, at least 256 MB, and at most the share of an instance in half of the memory of the machine. Pages use
 * memory only after their first use.
 */
export function defaultKvBytes(kv: KvShape, contextTokens: number, instances: number): number {
  const contextBytes = pagesFor(kv.groups, contextTokens, pageTokens) * kv.pageBytes;
  return Math.min(totalmem() / 2 / instances, Math.max(leastBytes, contextsAtOnce * contextBytes));
}
