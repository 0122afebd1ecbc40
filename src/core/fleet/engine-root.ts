// The block root of external engines in a cluster.
import type { BlockRoot } from '../kvcache/block-hash.ts';

/** In place of the forms that own instances compute in. Members of a cluster compare it: another value splits clusters. */
const externalForm = 'those of engines';

/** Engines exchange no pages with own instances, and compute other bits: a cluster has either. */
export function engineRoot(modelFingerprint: string): BlockRoot {
  return { modelFingerprint, weightForm: externalForm, inputForm: externalForm, kvType: externalForm, rope: '' };
}

export function isEngineRoot({ weightForm }: BlockRoot): boolean {
  return weightForm === externalForm;
}
