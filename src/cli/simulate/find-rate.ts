// The highest rate at which a cluster keeps a share of the requests within their SLO: `kvasir simulate --find-rate`.

/** How close the two rates are between which it lies. */
const precision = 1.01;
/** So many times the first rate, or that part of it, is the furthest that is tried. */
const factorMax = 2 ** 12;

export interface FoundRate {
  /** Kept. */
  readonly rate: number;
  /** Not kept. */
  readonly above: number;
  readonly tried: number;
}

/**
 * Doubles or halves from `firstRate` until one is kept and its double is not, then halves what lies between, on a scale of logarithms. More requests are
 * taken not to be kept better.
 * @throws Error when no rate in reach is kept, or every one is
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
    throw new Error(`Cannot find a rate: ${up ? 'every one is' : 'none is'} kept from ${firstRate} to ${low}`);
  while (high / low > precision) {
    const middle = Math.sqrt(low * high);
    if (await keeps(middle)) low = middle;
    else high = middle;
    tried++;
  }
  return { rate: low, above: high, tried };
}
