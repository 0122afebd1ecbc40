// Cuts a text at every match of a pattern.

/** All matches, in order. Throws where a match is too long for the regular expression engine: some four million characters. */
export function cutAll(text: string, pattern: RegExp): readonly string[] {
  try {
    return text.match(pattern) ?? [];
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Error(`Cannot tokenize text: a word in it is too long: the text has ${text.length} characters`);
  }
}
