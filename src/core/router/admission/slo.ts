// SLO classes: bounds that are absolute, or multiples of the time that a request takes on an idle instance.

import type { PrefillPredictor } from '../../cost/prefill.ts';
import type { Slo } from '../../protocol/slo.ts';
import { decodeShape, type StepPredictor } from '../../protocol/step-shape.ts';

/** Absolute in microseconds, or a multiple of the time that the request takes alone. */
export type SloBound = { readonly us: number } | { readonly times: number };

/** Bounds of one class of requests: on TTFT and TBT for streaming clients, else on the completion time. */
export type SloClass = { readonly ttft: SloBound; readonly tbt: SloBound } | { readonly completion: SloBound };

/** Parses '30s', '250ms', '250' (milliseconds) or '10x'; undefined for any other text. */
export function parseSloBound(text: string): SloBound | undefined {
  const match = /^(\d+(?:\.\d+)?)(x|ms|s)?$/.exec(text.trim());
  const value = Number(match?.[1] ?? 0);
  if (match === null || value === 0) return undefined;
  if (match[2] === 'x') return { times: value };
  return { us: Math.round(value * (match[2] === 's' ? 1e6 : 1e3)) };
}

interface Lengths {
  readonly promptTokens: number;
  readonly outputTokens: number;
}

/** The SLO of a request of a class; multiples refer to its prefill and decode on an idle instance with an empty cache. */
export function sloOf(
  slo: SloClass,
  { promptTokens, outputTokens }: Lengths,
  { prefill, steps }: { readonly prefill: PrefillPredictor; readonly steps: Pick<StepPredictor, 'predictUs'> },
): Slo {
  const usOf = (bound: SloBound, aloneUs: () => number) =>
    'us' in bound ? bound.us : Math.round(bound.times * aloneUs());
  const prefillUs = () => prefill.prefillUs(promptTokens, 0);
  const stepUs = (tokens: number) => steps.predictUs(decodeShape(1, tokens));
  if ('ttft' in slo) {
    const tbtUs = usOf(slo.tbt, () => stepUs(promptTokens + 1));
    return { ttftUs: usOf(slo.ttft, prefillUs), tbtUs, completionUs: Number.POSITIVE_INFINITY };
  }
  const gaps = Math.max(0, outputTokens - 1);
  const completionUs = usOf(slo.completion, () => prefillUs() + gaps * stepUs(promptTokens + (gaps + 1) / 2));
  return { ttftUs: Number.POSITIVE_INFINITY, tbtUs: Number.POSITIVE_INFINITY, completionUs };
}
