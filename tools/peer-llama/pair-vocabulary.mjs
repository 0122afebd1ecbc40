// A byte-level vocabulary that shows where a pre-tokenizer cuts: any two bytes side by side in a piece merge, in an order without pattern.

/** The character for each byte in a byte-level vocabulary: itself if it is printable Latin-1, else one from U+0100 on. */
const byteChars = (() => {
  let next = 0x100;
  const printable = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
})();

/** Tokens that no merge produces: they show whether a pre-tokenizer takes a whole piece that is a token. */
const words = ['hello', 'Ġworld', '123', "'ve", 'ĊĊĊ'];

/** @returns {{ tokens: string[], merges: string[] }} 256 bytes, 65,536 pairs and a few words */
export function pairVocabulary() {
  const pairs = Array.from({ length: 65_536 }, (_, index) => index);
  pairs.sort((a, b) => mixed(a) - mixed(b));
  const parts = pairs.map((pair) => [byteChars[pair >> 8], byteChars[pair & 255]]);
  return {
    tokens: [...byteChars, ...parts.map(([left, right]) => left + right), ...words],
    merges: parts.map(([left, right]) => `${left} ${right}`),
  };
}

/** One to one on 16 bits, so the order is the same in every sort. */
function mixed(value) {
  let bits = (value * 0x9e35 + 0x3c6f) & 0xffff;
  bits ^= bits >> 7;
  bits = (bits * 0x6a35) & 0xffff;
  return bits ^ (bits >> 8);
}
