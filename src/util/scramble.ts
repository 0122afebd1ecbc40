// Hash of 32-bit integers, for tables with integer keys.

/** The finaliser of MurmurHash3: every input bit changes about half of the output bits, and no two inputs collide. */
export function scramble(value: number): number {
  let x = value;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return x ^ (x >>> 16);
}

/** Neighbours, such as consecutive blocks of a prompt, that `scrambleGroup` keeps together. */
const neighbours = 4;

/** Scrambles all but the last bits: a table that this hash indexes has neighbours in one or two cache lines. */
export function scrambleGroup(value: number): number {
  return Math.imul(scramble(Math.floor(value / neighbours)), neighbours) | (value & (neighbours - 1));
}
