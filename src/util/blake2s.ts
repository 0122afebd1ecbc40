// BLAKE2s (RFC 7693) over 32-bit words, keyed and cut to 128 bits: a few microseconds for a block.

const iv = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19] as const;

/** Message word order of the ten rounds. */
const sigma = Uint8Array.of(
  ...[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  ...[14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  ...[11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  ...[7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  ...[9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  ...[2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  ...[12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  ...[13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  ...[6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  ...[10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
);

const h = new Int32Array(8);
const v = new Int32Array(16);
const m = new Int32Array(16);

function mix(a: number, b: number, c: number, d: number, x: number, y: number): void {
  let va = v[a];
  let vb = v[b];
  let vc = v[c];
  let vd = v[d];
  va = (va + vb + x) | 0;
  vd ^= va;
  vd = (vd >>> 16) | (vd << 16);
  vc = (vc + vd) | 0;
  vb ^= vc;
  vb = (vb >>> 12) | (vb << 20);
  va = (va + vb + y) | 0;
  vd ^= va;
  vd = (vd >>> 8) | (vd << 24);
  vc = (vc + vd) | 0;
  vb ^= vc;
  vb = (vb >>> 7) | (vb << 25);
  v[a] = va;
  v[b] = vb;
  v[c] = vc;
  v[d] = vd;
}

/** Mixes the message words in `m` into `h`; `bytes` counts the bytes so far, below 2^32. */
function compress(bytes: number, last: boolean): void {
  for (let i = 0; i < 8; i++) {
    v[i] = h[i];
    v[i + 8] = iv[i];
  }
  v[12] = v[12] ^ bytes;
  if (last) v[14] = ~v[14];
  for (let s = 0; s < 160; s += 16) {
    mix(0, 4, 8, 12, m[sigma[s]], m[sigma[s + 1]]);
    mix(1, 5, 9, 13, m[sigma[s + 2]], m[sigma[s + 3]]);
    mix(2, 6, 10, 14, m[sigma[s + 4]], m[sigma[s + 5]]);
    mix(3, 7, 11, 15, m[sigma[s + 6]], m[sigma[s + 7]]);
    mix(0, 5, 10, 15, m[sigma[s + 8]], m[sigma[s + 9]]);
    mix(1, 6, 11, 12, m[sigma[s + 10]], m[sigma[s + 11]]);
    mix(2, 7, 8, 13, m[sigma[s + 12]], m[sigma[s + 13]]);
    mix(3, 4, 9, 14, m[sigma[s + 14]], m[sigma[s + 15]]);
  }
  for (let i = 0; i < 8; i++) h[i] = h[i] ^ v[i] ^ v[i + 8];
}

/** Words of a digest and of a key. */
export const digestWords = 4;

/**
 * BLAKE2s with a 16-byte key and a 16-byte digest. The message is words `from..to` of `message`, each four bytes,
 * little endian. Key and digest are four words in the same order; `out` may be the array that holds the key. The
 * message is not empty.
 */
export function blake2s128(
  key: Uint32Array,
  keyAt: number,
  message: Int32Array | Uint32Array,
  from: number,
  to: number,
  out: Uint32Array,
  outAt: number,
): void {
  if (to <= from) throw new RangeError(`Cannot hash a message: it is empty: words ${from} to ${to}`);
  for (let i = 0; i < 8; i++) h[i] = iv[i];
  // Parameter block: 16 bytes of digest, 16 of key, fan-out and depth 1.
  h[0] = h[0] ^ 0x01011010;
  m.fill(0);
  for (let i = 0; i < digestWords; i++) m[i] = key[keyAt + i];
  compress(64, false);
  for (let at = from; at < to; at += 16) {
    const end = Math.min(at + 16, to);
    for (let i = at; i < end; i++) m[i - at] = message[i];
    if (end - at < 16) m.fill(0, end - at);
    compress(64 + (end - from) * 4, end === to);
  }
  for (let i = 0; i < digestWords; i++) out[outAt + i] = h[i];
}
