// The search for the highest rate that keeps a share of the requests within their SLO, and runs of sweeps that search for theirs.
import { rateOf } from '../../options/workload-options.ts';
import { UsageError } from '../../usage-error.ts';
import { type Report, reportOfRun, type SimulationOptions } from '../simulated-run.ts';

/** Ratio of the two rates that enclose the result. */
const precision = 1.01;
/** Largest factor between the first rate and a simulated one. */
const factorMax = 2 ** 12;

export interface FoundRate {
  /** The highest rate that met the SLO share. */
  readonly rate: number;
  /** A rate above it that did not. */
  readonly above: number;
  readonly tried: number;
  /** The rates that were tried, in this order. */
  readonly rates: readonly number[];
}

/**
 * Doubles or halves `firstRate` until a rate meets the share and its double does not, then bisects on a logarithmic scale. Assumes that
 * every rate below one that meets the share meets it too.
 * @throws Error if no rate within `factorMax` of the first meets the share, or every one does
 */
export async function findRate(firstRate: number, trial: (rate: number) => Promise<boolean>): Promise<FoundRate> {
  const rates: number[] = [];
  const meetsShare = (rate: number) => {
    rates.push(rate);
    return trial(rate);
  };
  let low = firstRate;
  let high = firstRate;
  const up = await meetsShare(firstRate);
  for (let factor = 2; factor <= factorMax; factor *= 2) {
    const next = up ? firstRate * factor : firstRate / factor;
    const met = await meetsShare(next);
    if (up) [low, high] = met ? [next, next] : [low, next];
    else [low, high] = met ? [next, high] : [next, next];
    if (met !== up) break;
  }
  if (low === high)
    throw new Error(`Cannot find a rate: ${up ? 'every rate' : 'no rate'} from ${firstRate} to ${low} meets the share`);
  while (high / low > precision) {
    const middle = Math.sqrt(low * high);
    if (await meetsShare(middle)) low = middle;
    else high = middle;
  }
  return { rate: low, above: high, tried: rates.length, rates };
}

/**
 * The options of a trial at a rate, which scales the times of one workload; the rate of a trace is its speed.
 * @throws UsageError without an SLO
 */
export function scaling(options: SimulationOptions) {
  const { trace, speed, workload, ttftSlo } = options;
  if (ttftSlo === undefined) throw new UsageError('Cannot find a rate without --ttft-slo and --tbt-slo');
  const own = trace === undefined ? (options.rate ?? rateOf(workload)) : 1;
  return {
    parameter: trace === undefined ? 'rate' : 'speed',
    first: own * speed,
    scaled: (rate: number): SimulationOptions => ({ ...options, speed: rate / own, findRate: undefined }),
  } as const;
}

/** A run of a sweep; with `findRate` the run at the highest rate, whose trials run one after another. */
export async function sweptReport(options: SimulationOptions): Promise<Report> {
  const { findRate: share } = options;
  if (share === undefined) return reportOfRun(options);
  const { scaled, first, parameter } = scaling(options);
  let best: Report | undefined;
  let bestRate = 0;
  const { rate, above, tried } = await findRate(first, async (candidate) => {
    const report = await reportOfRun(scaled(candidate));
    const met = report.withinSlo >= share * report.requests;
    if (met && candidate > bestRate) [best, bestRate] = [report, candidate];
    return met;
  });
  if (best === undefined) throw new Error(`Cannot find the run at ${rate}`);
  return { ...best, highestRate: { parameter, share, rate, above, tried } };
}
