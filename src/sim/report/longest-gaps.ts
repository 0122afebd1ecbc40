// TBT of a request: its time between tokens as one number.

/** Share of a request's gaps, the longest ones, that its TBT is the mean of (Mooncake, FAST'25). */
const longestGaps = 0.1;

/** TBT of a request from its first `gaps` gaps, which this function reorders. */
export function meanOfLongest(gapUs: Float64Array, gaps: number): number {
  const count = Math.ceil(gaps * longestGaps);
  const first = gaps - count;
  putInPlace(gapUs, first, gaps - 1);
  let sum = 0;
  for (let i = first; i < gaps; i++) sum += gapUs[i];
  return sum / count;
}

/** Hoare's selection: afterwards no value before `place` is larger than one from `place` to `last`. */
function putInPlace(values: Float64Array, place: number, last: number): void {
  let left = 0;
  let right = last;
  while (left < right) {
    const pivot = values[(left + right) >> 1];
    let i = left;
    let j = right;
    while (i <= j) {
      while (values[i] < pivot) i++;
      while (values[j] > pivot) j--;
      if (i > j) break;
      const swapped = values[i];
      values[i++] = values[j];
      values[j--] = swapped;
    }
    if (place <= j) right = j;
    else if (place >= i) left = i;
    else return;
  }
}
