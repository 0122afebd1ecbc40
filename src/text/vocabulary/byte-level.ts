// The alphabet of byte-level vocabularies: each byte is written as one visible character.

import { encodeUtf8 } from '../utf8.ts';

// Printable Latin-1 stands for itself; the other 68 bytes take the characters from U+0100 on, in order.
const isPrintable = (byte: number) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;

/** (256): the character that stands for each byte. */
export const byteChars: readonly string[] = (() => {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++));
})();

const bytesByChar = new Map(byteChars.map((char, byte) => [char, byte]));

/** Bytes that a byte-level token stands for; a character outside the alphabet gives its own UTF-8. */
export function byteLevelBytes(token: string): Uint8Array {
  const bytes: number[] = [];
  for (const char of token) {
    const byte = bytesByChar.get(char);
    if (byte === undefined) bytes.push(...encodeUtf8(char));
    else bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}
