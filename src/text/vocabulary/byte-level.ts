// The alphabet of byte-level vocabularies: each byte is written as one visible character.

import { encodeUtf8 } from '../utf8.ts';

// Printable Latin-1 bytes map to themselves; the other 68 bytes map to the characters from U+0100 on, in order.
const isPrintable = (byte: number) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;

/** (256): the character of each byte. */
export const byteChars: readonly string[] = (() => {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++));
})();

const bytesByChar = new Map(byteChars.map((char, byte) => [char, byte]));

/** Bytes of a byte-level token; a token with a character outside the alphabet is text, so its bytes are its UTF-8. */
export function byteLevelBytes(token: string): Uint8Array {
  const bytes: number[] = [];
  for (const char of token) {
    const byte = bytesByChar.get(char);
    if (byte === undefined) return encodeUtf8(token);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}
