// Binary search over a range of numbers.

/** Largest n of 1..most for which `fits` holds, if it holds up to some n and not beyond; 0: for none. */
export function largestWithin(most: number, fits: (n: number) => boolean): number {
  let within = 0;
  let over = most + 1;
  while (over - within > 1) {
    const middle = (within + over) >> 1;
    if (fits(middle)) within = middle;
    else over = middle;
  }
  return within;
}
