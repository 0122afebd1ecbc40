// TTFT and TBT percentiles of recent requests by SLO class, beside the bounds of the class.
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import { tbtOf, ttftOf } from '../metrics/predictions.ts';

/** Absolute in microseconds, or a multiple of the time that the request takes alone. */
type Bound = { readonly us: number } | { readonly times: number };

/** The bounds of an SLO class, on TTFT and TBT or on the completion time. */
export interface LatencyBounds {
  readonly ttft?: Bound;
  readonly tbt?: Bound;
  readonly completion?: Bound;
}

/** Milliseconds. `within`: share of requests within the bound; null: the bound is not absolute. */
export interface LatencyFigures {
  readonly requests: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  /** Milliseconds, or a text such as '10x'; null: none. */
  readonly slo: number | string | null;
  readonly within: number | null;
}

export interface ClassLatencies {
  /** Empty: requests without a class. */
  readonly name: string;
  readonly ttft: LatencyFigures | null;
  readonly tbt: LatencyFigures | null;
  /** From submission to the last token. */
  readonly completion: LatencyFigures | null;
}

/** @param traces also of running requests, which count once they have the latency */
export function classLatencies(
  traces: readonly RequestTrace[],
  boundsOf: (name: string) => LatencyBounds | undefined,
): readonly ClassLatencies[] {
  const byClass = new Map<string, RequestTrace[]>();
  for (const trace of traces) {
    const name = trace.sloClass ?? '';
    const own = byClass.get(name);
    if (own === undefined) byClass.set(name, [trace]);
    else own.push(trace);
  }
  return [...byClass]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, own]) => {
      const bounds = boundsOf(name) ?? {};
      const completed = own.filter(({ state }) => state === 'finished');
      return {
        name,
        ttft: figuresOf(
          own.map((trace) => ttftOf(trace).actualUs),
          bounds.ttft,
        ),
        tbt: figuresOf(
          own.map((trace) => tbtOf(trace).actualUs),
          bounds.tbt,
        ),
        completion: figuresOf(
          completed.map(({ endedUs, submittedUs }) => endedUs && endedUs - submittedUs),
          bounds.completion,
        ),
      };
    });
}

function figuresOf(all: readonly (number | undefined)[], bound: Bound | undefined): LatencyFigures | null {
  const sorted = all.filter((us) => us !== undefined).sort((a, b) => a - b);
  if (sorted.length === 0) return null;
  const at = (share: number) => Math.round(sorted[Math.ceil(share * sorted.length) - 1] ?? 0) / 1000;
  const mostUs = bound !== undefined && 'us' in bound ? bound.us : undefined;
  const slo = bound === undefined ? null : 'us' in bound ? bound.us / 1000 : `${bound.times}x`;
  const within = mostUs === undefined ? null : sorted.filter((us) => us <= mostUs).length / sorted.length;
  return { requests: sorted.length, p50: at(0.5), p90: at(0.9), p99: at(0.99), slo, within };
}
