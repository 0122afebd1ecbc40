// Spreads 32-bit integers: what hashes and tables of integer keys begin with.

/** The finisher of MurmurHash3: every bit of the input moves about half of the output's, and no two inputs give the same. */
export function scramble(value: number): number {
  let x = value;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return x ^ (x >>> 16);
}
