// Medians and percentiles of measured values.

/** Nearest-rank percentile, 0 < p <= 100; undefined for an empty list. */
export function percentile(values: readonly number[], p: number): number | undefined {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.ceil((p / 100) * sorted.length) - 1)];
}

export function median(values: readonly number[]): number | undefined {
  return percentile(values, 50);
}

/** p50, p95 and p99, rounded to 1/100. */
export function summary(values: readonly number[]): {
  p50: number | undefined;
  p95: number | undefined;
  p99: number | undefined;
} {
  return { p50: round(percentile(values, 50)), p95: round(percentile(values, 95)), p99: round(percentile(values, 99)) };
}

export function round(value: number): number;
export function round(value: number | undefined): number | undefined;
export function round(value: number | undefined): number | undefined {
  return value === undefined ? undefined : Math.round(value * 100) / 100;
}
