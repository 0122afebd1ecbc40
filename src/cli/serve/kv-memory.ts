// The default size of KV memory.
import { totalmem } from 'node:os';
import { pagesFor } from '../../core/kvcache/layer-groups.ts';
import type { KvShape } from '../../engine/load-model.ts';
import { pageTokens } from '../../util/step.ts';
import { groupLimits } from './host/cgroup.ts';

/** Sequences of the longest context that fit at once. */
const contextsAtOnce = 2;
const bytesMin = 256 * 2 ** 20;

/**
 * Memory for two sequences of the longest context. It is at least 256 MiB, and at most an equal share of half the memory
 * of the machine or of its control group. The system provides a page of memory at its first use.
 */
export function defaultKvBytes(kv: KvShape, contextTokens: number, instances: number): number {
  const contextBytes = pagesFor(kv.groups, contextTokens, pageTokens) * kv.pageBytes;
  return Math.min(
    Math.min(totalmem(), groupLimits().memoryBytes ?? totalmem()) / 2 / instances,
    Math.max(bytesMin, contextsAtOnce * contextBytes),
  );
}
