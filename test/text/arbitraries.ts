// Random texts and splits for property tests.

import fc from 'fast-check';

const words = fc.constantFrom(
  'Hello',
  ' world',
  " don't",
  " I'LL",
  '  ',
  '\n',
  '\n\n',
  '\t',
  '\r\n',
  ' ',
  '\u00a0',
  '\u0085',
  '\u3000',
  '\ufeff',
  '▁',
  ' ▁',
  '0',
  '12',
  '3456',
  '½',
  '٣٤',
  '+',
  '=',
  '...',
  '!?',
  'éa\u0301',
  'Ñ',
  'щ',
  '漢字',
  '한국',
  '😀',
  '👩‍👩‍👧',
  '\ud800',
  '\udc00',
  '<0x0A>',
  '<|',
  '|>',
);

/** Any JavaScript string, unpaired surrogates included, and texts that are hard for tokenizers. */
export const anyText = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.string({ unit: 'grapheme' }),
  fc.array(fc.nat(0xffff)).map((units) => String.fromCharCode(...units)),
  fc.array(words, { maxLength: 30 }).map((parts) => parts.join('')),
);

/** Texts of code that is indented by 0 to 39 spaces and tabs. */
export const indentedCode: readonly string[] = Array.from({ length: 40 }, (_, count) => {
  const [spaces, tabs] = [' '.repeat(count), '\t'.repeat(count)];
  return `if x:\n${spaces}return a${spaces}b\n\n${tabs}x`;
});

/** Splits a value into parts of the given sizes (0 included). */
export function* cut<T extends { readonly length: number; slice(from: number, to: number): T }>(
  whole: T,
  sizes: Iterable<number>,
): Generator<T> {
  let at = 0;
  for (const size of sizes) {
    if (at >= whole.length) return;
    yield whole.slice(at, at + size);
    at += size;
  }
}
