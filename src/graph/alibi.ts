// Slopes of ALiBi's position bias (Press et al., "Train Short, Test Long").

/** (heads): a geometric sequence from 2^(-8/n) for n heads, a power of two; other counts take every second slope of twice that power. */
export function alibiSlopes(heads: number): Float32Array {
  const power = 2 ** Math.floor(Math.log2(heads));
  const slope = (count: number, index: number): number => 2 ** ((-8 * (index + 1)) / count);
  return Float32Array.from({ length: heads }, (_, head) =>
    head < power ? slope(power, head) : slope(2 * power, 2 * (head - power)),
  );
}
