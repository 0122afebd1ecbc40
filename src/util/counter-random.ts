// Counter-based random numbers: uniform values as a pure function of (seed, index), equal in TypeScript and C++.

const multiplierA = 0xd2511f53;
const multiplierB = 0xcd9e8d57;
const weylA = 0x9e3779b9;
const weylB = 0xbb67ae85;

/** High 32 bits of the 64-bit product of two 32-bit integers. */
function multiplyHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const carry = (middle % 0x10000) + aLow * bHigh;
  return (aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(carry / 0x10000)) >>> 0;
}

/**
 * Uniform in [0, 1) with 53 random bits: the first two words of Philox4x32-10 with the seed as key and `index` as
 * counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
 */
export function counterUniform(seedLow: number, seedHigh: number, index: number): number {
  let c0 = index >>> 0;
  let c1 = 0;
  let c2 = 0;
  let c3 = 0;
  let k0 = seedLow >>> 0;
  let k1 = seedHigh >>> 0;
  for (let round = 0; round < 10; round++) {
    const high0 = multiplyHigh(multiplierA, c0);
    const low0 = Math.imul(multiplierA, c0) >>> 0;
    const high1 = multiplyHigh(multiplierB, c2);
    const low1 = Math.imul(multiplierB, c2) >>> 0;
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = low1;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0;
    k0 = (k0 + weylA) >>> 0;
    k1 = (k1 + weylB) >>> 0;
  }
  return ((c0 >>> 5) * 0x4000000 + (c1 >>> 6)) / 0x20000000000000;
}
