// `kvasir simulate --find-rate`: the highest rate that keeps a share of the requests within their SLO.
import { withoutOutputs } from './outputs/run-outputs.ts';
import { runSimulation, type SimulationOptions } from './simulated-run.ts';
import { type FoundRate, findRate, scaling } from './sweep/rate-search.ts';
import { searchAhead } from './sweep/search-ahead.ts';
import { SimulationThreads } from './sweep/simulation-threads.ts';
import { estimateOf } from './sweep/sweep-rows.ts';

/**
 * Finds the highest rate of a synthetic workload, or speed of a trace, that keeps `share` of the requests within the SLO, and runs it. Every
 * trial has the same requests, whose times are scaled. With several seeds it is the mean of their rates.
 */
export async function runAtHighestRate(options: SimulationOptions, share: number) {
  const { scaled, parameter, first } = scaling(options);
  const seeds = Array.from({ length: options.seeds ?? 1 }, (_, i) => options.seed + i);
  const threads = new SimulationThreads({ startsAtOnce: false });
  const one = async (seed: number) => {
    const shares = new Map<number, number>();
    const found = await searchAhead<number, boolean, FoundRate>((meetsShare) => findRate(first, meetsShare), {
      run: async (rate) => {
        const { withinSlo, requests } = await threads.run({ ...withoutOutputs(scaled(rate)), seed });
        shares.set(rate, requests === 0 ? 0 : withinSlo / requests);
        return withinSlo >= share * requests;
      },
      keyOf: String,
      guesses: [true, false],
      // The searches of several seeds run beside each other.
      atOnce: Math.max(1, Math.floor(threads.size / seeds.length)),
    });
    const points = found.rates.map((rate) => ({ seed, [parameter]: rate, withinSlo: shares.get(rate) ?? 0 }));
    return { ...found, points };
  };
  try {
    const found = await Promise.all(seeds.map(one));
    const rates = found.map(({ rate }) => rate);
    const { mean = rates[0], error = 0 } = rates.length === 1 ? {} : (estimateOf(rates) ?? {});
    const tried = found.reduce((sum, each) => sum + each.tried, 0);
    const [{ above }] = found;
    const several = seeds.length === 1 ? undefined : { rates, interval: [mean - error, mean + error] };
    return {
      parameter,
      found: { rate: mean, above, tried },
      /** Every trial: the share of requests within the SLO by rate. */
      curve: found.flatMap(({ points }) => points).sort((a, b) => a.seed - b.seed || a[parameter] - b[parameter]),
      several,
      share,
      simulation: await runSimulation(scaled(mean)),
    };
  } finally {
    await threads.close();
  }
}

export type HighestRate = Awaited<ReturnType<typeof runAtHighestRate>>;
