// Logarithm and exponential with the same bits on any machine: additions, multiplications and divisions in one fixed
// order. Math.log and Math.exp may differ between engines.

/** Enough terms for the last bit: |s| is at most 0.1716, and 0.1716 ** 24 is below 2 ** -60. */
const logTerms = 12;
/** |r| is at most 0.3466, and 0.3466 ** 17 / 17! is below 2 ** -70. */
const expTerms = 17;

/** Natural logarithm of a positive finite number, within 2 units of the last place. */
export function exactLog(value: number): number {
  let mantissa = value;
  let exponent = 0;
  for (; mantissa < Math.SQRT1_2; mantissa *= 2) exponent--;
  for (; mantissa > Math.SQRT2; mantissa /= 2) exponent++;
  // ln m = 2 artanh((m - 1) / (m + 1)).
  const s = (mantissa - 1) / (mantissa + 1);
  const square = s * s;
  let sum = 0;
  for (let term = logTerms; term >= 0; term--) sum = sum * square + 1 / (2 * term + 1);
  return 2 * s * sum + exponent * Math.LN2;
}

/** e to the power of a number between -700 and 700, within some units of the last place. */
export function exactExp(value: number): number {
  const exponent = Math.round(value / Math.LN2);
  const rest = value - exponent * Math.LN2;
  let sum = 1;
  for (let term = expTerms; term >= 1; term--) sum = 1 + (sum * rest) / term;
  for (let i = 0; i < exponent; i++) sum *= 2;
  for (let i = 0; i > exponent; i--) sum /= 2;
  return sum;
}
