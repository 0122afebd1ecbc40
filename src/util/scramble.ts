// Hash of 32-bit integers, for tables with integer keys.

/** The finaliser of MurmurHash3: every input bit changes about half of the output bits, and no two inputs collide. */
export function scramble(value: number): number {
  let x = value;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return x ^ (x >>> 16);
}
