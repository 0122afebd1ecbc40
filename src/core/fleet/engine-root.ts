// The block root of external engines in a cluster.
import type { BlockRoot } from '../kvcache/block-hash.ts';

const form = 'those of engines';

/** Engines exchange no pages with own instances, and compute other bits: a cluster has either. */
export function engineRoot(modelFingerprint: string): BlockRoot {
  return { modelFingerprint, weightForm: form, inputForm: form, kvType: form, rope: '' };
}

export function isEngineRoot({ weightForm }: BlockRoot): boolean {
  return weightForm === form;
}
