// `kvasir simulate --find-rate`: the highest rate that keeps a share of the requests within their SLO.

/** Ratio of the two rates that enclose the result. */
const precision = 1.01;
/** Largest factor between the first rate and a tried one. */
const factorMax = 2 ** 12;

export interface FoundRate {
  /** The highest rate that met the SLO share. */
  readonly rate: number;
  /** A rate above it that did not. */
  readonly above: number;
  readonly tried: number;
}

/**
 * Doubles or halves `firstRate` until a rate meets the share and its double does not, then bisects on a logarithmic scale. Assumes that
 * a higher rate never meets the share better.
 * @throws Error if no rate in reach meets the share, or every one does
 */
export async function findRate(firstRate: number, keeps: (rate: number) => Promise<boolean>): Promise<FoundRate> {
  let tried = 1;
  let low = firstRate;
  let high = firstRate;
  const up = await keeps(firstRate);
  for (let factor = 2; factor <= factorMax; factor *= 2) {
    const next = up ? firstRate * factor : firstRate / factor;
    const kept = await keeps(next);
    tried++;
    if (up) [low, high] = kept ? [next, next] : [low, next];
    else [low, high] = kept ? [next, high] : [next, next];
    if (kept !== up) break;
  }
  if (low === high)
    throw new Error(`Cannot find a rate: ${up ? 'every rate' : 'no rate'} from ${firstRate} to ${low} meets the share`);
  while (high / low > precision) {
    const middle = Math.sqrt(low * high);
    if (await keeps(middle)) low = middle;
    else high = middle;
    tried++;
  }
  return { rate: low, above: high, tried };
}
