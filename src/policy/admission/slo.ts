// What a request may wait for: its first token, and each next one.
import type { PrefillPredictor } from '../cost/prefill.ts';
import type { StepPredictor } from '../cost/step-shape.ts';

export interface Slo {
  readonly ttftUs: number;
  readonly tbtUs: number;
}

/** Absolute, or so many times what the same request takes alone. */
export type SloBound = { readonly us: number } | { readonly times: number };

/** One class of requests. */
export interface SloClass {
  readonly ttft: SloBound;
  readonly tbt: SloBound;
}

/** '30s', '250ms', '250' (milliseconds) or '10x'; undefined when it is none of these. */
export function parseSloBound(text: string): SloBound | undefined {
  const match = /^(\d+(?:\.\d+)?)(x|ms|s)?$/.exec(text.trim());
  const value = Number(match?.[1] ?? 0);
  if (match === null || value === 0) return undefined;
  if (match[2] === 'x') return { times: value };
  return { us: Math.round(value * (match[2] === 's' ? 1e6 : 1e3)) };
}

/** What a request of a class may wait: against its own prefill and decode on an instance that does nothing else, nothing of it cached. */
export function sloOf(
  { ttft, tbt }: SloClass,
  promptTokens: number,
  { prefill, steps }: { readonly prefill: PrefillPredictor; readonly steps: Pick<StepPredictor, 'predictUs'> },
): Slo {
  const ttftUs = 'us' in ttft ? ttft.us : Math.round(ttft.times * prefill.prefillUs(promptTokens, 0));
  const tbtUs = 'us' in tbt ? tbt.us : Math.round(tbt.times * steps.predictUs(decodeShape(1, promptTokens + 1)));
  return { ttftUs, tbtUs };
}

/** A step in which `rows` sequences with `keys` tokens together decode. */
export function decodeShape(rows: number, keys: number) {
  return { rows, keyRows: keys, decodeRows: rows, decodeKeys: keys, logitRows: rows };
}
