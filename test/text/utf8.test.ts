// UTF-8 against the platform's encoder and decoder.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodeUtf8, encodeUtf8, toWellFormed, Utf8Decoder } from '../../src/text/utf8.ts';
import { anyText, cut } from './arbitraries.ts';

const platformDecode = (bytes: Uint8Array) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);

// Bytes that begin, continue or break characters, far more often than uniform bytes would.
const trickyBytes = fc
  .array(fc.oneof(fc.nat(255), fc.constantFrom(0x80, 0xbf, 0xc0, 0xc3, 0xe0, 0xed, 0xa0, 0x9f, 0xef, 0xf0, 0xf4, 0x90)))
  .map((bytes) => Uint8Array.from(bytes));

describe('UTF-8', () => {
  test('encodes any string as the platform does', () => {
    fc.assert(
      fc.property(anyText, (text) => {
        expect(encodeUtf8(text)).toEqual(new Uint8Array(new TextEncoder().encode(text)));
        expect(decodeUtf8(encodeUtf8(text))).toBe(toWellFormed(text));
      }),
    );
  });

  test('decodes any bytes as the platform does, in portions of any size', () => {
    fc.assert(
      fc.property(trickyBytes, fc.infiniteStream(fc.nat(4)), (bytes, sizes) => {
        const decoder = new Utf8Decoder();
        let text = '';
        for (const part of cut(bytes, sizes)) text += decoder.push(part);
        text += decoder.flush();
        expect(text).toBe(platformDecode(bytes));
      }),
    );
  });

  test('a long text is unchanged by encoding and decoding', () => {
    const text = 'aé漢😀'.repeat(20_000);
    expect(decodeUtf8(encodeUtf8(text))).toBe(text);
  });
});
