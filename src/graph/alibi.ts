// Slopes of ALiBi's position bias (Press et al., "Train Short, Test Long").

/**
 * (heads): a geometric sequence from 2^(-8/n) if n heads are a power of two. Other counts append every second slope of
 * the next power.
 */
export function alibiSlopes(heads: number): Float32Array {
  const power = 2 ** Math.floor(Math.log2(heads));
  const slope = (count: number, index: number): number => 2 ** ((-8 * (index + 1)) / count);
  return Float32Array.from({ length: heads }, (_, head) =>
    head < power ? slope(power, head) : slope(2 * power, 2 * (head - power)),
  );
}
