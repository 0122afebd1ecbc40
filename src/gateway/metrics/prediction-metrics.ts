// Metrics of predictions: predicted latencies of finished requests, and their ratio to the actual ones.
import { Histogram, type Registry } from 'prom-client';
import type { ClusterView } from '../../core/protocol/ports.ts';
import { type Outcome, tbtOf, ttftOf } from './predictions.ts';

const ratios = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.15, 1.3, 1.5, 2, 4, 10];

interface Audited {
  readonly predicted: Histogram;
  readonly ratio: Histogram;
}

/** Observes each request that finished in its first attempt, except batch jobs. */
export function auditPredictions(
  registry: Registry,
  cluster: ClusterView,
  seconds: { readonly ttft: readonly number[]; readonly tbt: readonly number[] },
): void {
  const histogram = (name: string, help: string, buckets: readonly number[]) =>
    new Histogram({ name, help, buckets: [...buckets], registers: [registry] });
  const audited = (name: 'ttft' | 'tbt', what: string): Audited => ({
    predicted: histogram(`kvasir_predicted_${name}_seconds`, `${what}, predicted at placement.`, seconds[name]),
    ratio: histogram(`kvasir_${name}_actual_to_predicted`, `${what}, actual over predicted.`, ratios),
  });
  const ttft = audited('ttft', 'Time to first token');
  const tbt = audited('tbt', 'Mean time between tokens');
  cluster.onEnded((trace) => {
    if (trace.state !== 'finished' || trace.batch || trace.placements.length !== 1) return;
    observe(ttft, ttftOf(trace));
    observe(tbt, tbtOf(trace));
  });
}

function observe({ predicted, ratio }: Audited, { predictedUs, actualUs }: Outcome): void {
  if (predictedUs === undefined || actualUs === undefined || predictedUs <= 0 || !Number.isFinite(predictedUs)) return;
  predicted.observe(predictedUs / 1e6);
  ratio.observe(actualUs / predictedUs);
}
