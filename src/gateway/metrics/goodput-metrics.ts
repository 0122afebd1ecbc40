// Counts requests within the SLO of their class, as they end.
import { Counter, type Registry } from 'prom-client';
import type { ClusterView } from '../../core/protocol/ports.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import type { LatencyBounds } from '../dashboard/class-latencies.ts';
import { tbtOf, ttftOf } from './predictions.ts';

/** Batch jobs and cancelled requests count nowhere, nor do classes without an absolute bound. */
export function countGoodput(
  registry: Registry,
  cluster: ClusterView,
  boundsOf: (sloClass: string) => LatencyBounds | undefined,
): void {
  const counter = (name: string, help: string) =>
    new Counter({ name, help, labelNames: ['slo_class'], registers: [registry] });
  const ended = counter(
    'kvasir_slo_requests_total',
    'Requests with absolute latency bounds that ended, refused and failed ones included, by SLO class.',
  );
  const within = counter('kvasir_goodput_requests_total', 'Of these, requests that finished within all bounds.');
  cluster.onEnded((trace) => {
    const { sloClass: name = '', batch, state } = trace;
    const isWithin = batch || state === 'cancelled' ? undefined : isWithinBounds(trace, boundsOf(name));
    if (isWithin === undefined) return;
    ended.inc({ slo_class: name });
    if (isWithin) within.inc({ slo_class: name });
  });
}

/** Undefined: no bound is absolute. */
function isWithinBounds(trace: RequestTrace, bounds: LatencyBounds = {}): boolean | undefined {
  const { state, submittedUs, endedUs } = trace;
  const completionUs = endedUs === undefined ? undefined : endedUs - submittedUs;
  const latencies = [
    [bounds.ttft, ttftOf(trace).actualUs],
    // A request with one token has no gaps.
    [bounds.tbt, tbtOf(trace).actualUs ?? 0],
    [bounds.completion, completionUs],
  ] as const;
  const absolute = latencies.flatMap(([bound, actualUs]) =>
    bound !== undefined && 'us' in bound ? [{ mostUs: bound.us, actualUs }] : [],
  );
  if (absolute.length === 0) return undefined;
  return state === 'finished' && absolute.every(({ mostUs, actualUs }) => actualUs !== undefined && actualUs <= mostUs);
}
