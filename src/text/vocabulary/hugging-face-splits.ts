// Rewrites the pre-tokenizers of tokenizer.json that the library cuts by JavaScript's idea of digits and white space.

type Json = Readonly<Record<string, unknown>>;

// What ByteLevel cuts by. In a Split the library reads \s as Unicode's white space, in its own ByteLevel it does not.
const byteLevelWords = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const split = (regex: string): Json => ({
  type: 'Split',
  pattern: { Regex: regex },
  behavior: 'Isolated',
  invert: false,
});

/** A pre-tokenizer of the same meaning that the library cuts exactly. */
export function exactPreTokenizer(preTokenizer: unknown): unknown {
  if (typeof preTokenizer !== 'object' || preTokenizer === null || !('type' in preTokenizer)) return preTokenizer;
  const step: Json = { ...preTokenizer };
  switch (step.type) {
    case 'Sequence':
      return Array.isArray(step.pretokenizers)
        ? { ...step, pretokenizers: step.pretokenizers.map(exactPreTokenizer) }
        : step;
    case 'Digits':
      return split(step.individual_digits === true ? '\\p{N}' : '\\p{N}+');
    case 'ByteLevel':
      // With a prefix space the cut would have to come after it.
      if (step.use_regex === false || step.add_prefix_space === true) return step;
      return { type: 'Sequence', pretokenizers: [split(byteLevelWords), { ...step, use_regex: false }] };
    default:
      return step;
  }
}
