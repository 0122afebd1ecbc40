// Whether a request is taken: predicted times over what it may wait, of the pool that prefills and of the pool that decodes (Mooncake, section 6).

/**
 * none: always. stage: each pool looks when the request comes to it. early: both before prefill, decode as it is now. predictive: both
 * before prefill, decode as it will be when prefill ends. All but none look once more before a request joins a decoding batch.
 */
export const admissionKinds = ['none', 'stage', 'early', 'predictive'] as const;
export type AdmissionKind = (typeof admissionKinds)[number];

/** 1 is full: what is predicted over what may be. */
export interface Loads {
  readonly ttft: number;
  readonly tbt: number;
  /** Keys and values of all who decode over what fits. */
  readonly memory: number;
  /** The last token. */
  readonly completion: number;
}

/** What only those look at who ask the pool that decodes before prefill. */
const ofDecode = ['tbt', 'memory', 'completion'] as const;

/** The load that is over 1 and the largest of those that the policy looks at before prefill. */
export function overload(kind: AdmissionKind, loads: Loads): keyof Loads | undefined {
  if (kind === 'none') return undefined;
  let worst: keyof Loads = 'ttft';
  if (kind !== 'stage') for (const load of ofDecode) if (loads[load] > loads[worst]) worst = load;
  return loads[worst] > 1 ? worst : undefined;
}
