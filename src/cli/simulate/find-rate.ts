// `kvasir simulate --find-rate`: the highest rate that keeps a share of the requests within their SLO.

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
}

/**
 * Doubles or halves `firstRate` until a rate meets the share and its double does not, then bisects on a logarithmic scale. Assumes that
 * every rate below one that meets the share meets it too.
 * @throws Error if no rate within `factorMax` of the first meets the share, or every one does
 */
export async function findRate(firstRate: number, meetsShare: (rate: number) => Promise<boolean>): Promise<FoundRate> {
  let tried = 1;
  let low = firstRate;
  let high = firstRate;
  const up = await meetsShare(firstRate);
  for (let factor = 2; factor <= factorMax; factor *= 2) {
    const next = up ? firstRate * factor : firstRate / factor;
    const met = await meetsShare(next);
    tried++;
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
    tried++;
  }
  return { rate: low, above: high, tried };
}
