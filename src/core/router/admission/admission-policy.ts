// Admission policies: which predicted loads refuse a request before its prefill (Mooncake, section 6).

import { type Refusal, refusal, retryAfterMsMax, retryAfterMsMin } from '../../protocol/refusals.ts';
import type { Slo } from '../../protocol/slo.ts';

/** Predictions over their bounds; a load over 1 exceeds its bound. */
export interface Loads {
  readonly ttft: number;
  readonly tbt: number;
  /** KV memory that the decoding requests need, over what the instance has. */
  readonly memory: number;
  /** Time until the last token. */
  readonly completion: number;
}

interface NamedPolicy {
  /** Loads that are checked before prefill; among equal loads the first one is reported. */
  readonly checks: readonly (keyof Loads)[];
  /** The decode pool is forecast for the time at which the prefill ends; else its present load counts. */
  readonly forecastsDecode: boolean;
}

const allLoads = ['ttft', 'tbt', 'memory', 'completion'] as const;

export const admissionKinds = ['none', 'stage', 'early', 'predictive'] as const;
export type AdmissionKind = (typeof admissionKinds)[number];

/**
 * The table of policies: a new policy is a kind above and an entry here. All but `none` check once more on the decode instance, before the
 * decode of a request starts.
 */
export const admissionPolicies: Readonly<Record<AdmissionKind, NamedPolicy>> = {
  /** Every request that fits is accepted. */
  none: { checks: [], forecastsDecode: false },
  /** Each pool checks a request when the request reaches that pool. */
  stage: { checks: ['ttft'], forecastsDecode: false },
  /** Early rejection (Mooncake, section 6.1): both pools are checked before prefill. */
  early: { checks: allLoads, forecastsDecode: false },
  /** Early rejection based on prediction (Mooncake, section 6.2). */
  predictive: { checks: allLoads, forecastsDecode: true },
};

/** A request that admission judges. */
export interface JudgedRequest {
  readonly promptTokens: number;
  /** The predicted ones. */
  readonly outputTokens: number;
  readonly slo: Slo;
}

/** A policy beside the named ones: a pure function. It returns the load that refuses the request; undefined: accepted. */
export type AdmissionPolicy = (loads: Loads, request: JudgedRequest) => keyof Loads | undefined;

/** The largest load over 1 among those that the policy checks before prefill; undefined: the request is accepted. */
export function overload(kind: AdmissionKind, loads: Loads): keyof Loads | undefined {
  let worst: keyof Loads | undefined;
  for (const load of admissionPolicies[kind].checks)
    if (loads[load] > (worst === undefined ? 1 : loads[worst])) worst = load;
  return worst;
}

/** Predictions for a request before its prefill. */
interface Predictions {
  readonly ttftUs: number;
  readonly tbtUs: number;
  readonly outputTokens: number;
  /** Until the last token. */
  readonly completionUs: number;
  /** KV memory of all that would decode, over capacity. */
  readonly memory: number;
  /** Mean duration of a decode, after which capacity is free again. */
  readonly decodeUs: number;
}

/** The refusal before prefill of a request that would miss its SLO or exceed KV memory. */
export function admissionRefusal(worst: keyof Loads, predictions: Predictions, slo: Slo): Refusal {
  const ttftUsMax = Math.min(slo.ttftUs, slo.completionUs);
  const { ttftUs, tbtUs, outputTokens, memory, completionUs, decodeUs } = predictions;
  const causes = {
    ttft: { reason: 'ttft', at: 'prefill', predictedUs: ttftUs, mostUs: ttftUsMax },
    tbt: { reason: 'tbt', at: 'prefill', predictedUs: tbtUs, mostUs: slo.tbtUs },
    completion: {
      ...({ reason: 'completion', at: 'prefill', outputTokens, tbtUs } as const),
      ...{ predictedUs: completionUs, mostUs: slo.completionUs },
    },
    memory: { reason: 'memory', at: 'prefill', share: memory },
  } as const;
  const afterMs = Math.round((worst === 'ttft' ? ttftUs - ttftUsMax : decodeUs) / 1000);
  return refusal(causes[worst], Math.min(retryAfterMsMax, Math.max(retryAfterMsMin, afterMs)));
}
