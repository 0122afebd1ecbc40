// Splits a text into the matches of a pattern.

/**
 * All matches, in order. @throws Error when a match is too long for the regular expression engine: about four million
 * characters
 */
export function cutAll(text: string, pattern: RegExp): readonly string[] {
  try {
    return text.match(pattern) ?? [];
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Error(`Cannot tokenize text: a word in it is too long: the text has ${text.length} characters`);
  }
}
