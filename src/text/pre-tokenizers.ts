// How byte-level BPE cuts a text into pieces before merging, one row for each pre-tokenizer a GGUF file can name.

import { cutAll } from './cut.ts';

/** One pass over the pieces. `whole`: the pattern matches every character, so there are no gaps to keep. */
interface Pass {
  readonly pattern: RegExp;
  readonly whole: boolean;
}

export interface PreTokenizer {
  readonly passes: readonly Pass[];
  /** A piece that is a token is taken as it is, whatever the merges say. */
  readonly ignoreMerges: boolean;
  /** Whether a sequence begins with the bos token where the file does not say. */
  readonly addBos: boolean;
}

// Unicode's White_Space, which \s of JavaScript is not (it has U+FEFF and lacks U+0085).
const space = '\\p{White_Space}';
const word = `[^${space}\\p{L}\\p{N}]`;
const contractions = "'(?:s|t|re|ve|m|ll|d)";
const anyCaseContractions = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])";
// Leaves the last of several spaces to the word behind them.
const spaces = `${space}+(?!\\P{White_Space})|${space}+`;

const matches = (pattern: string): Pass => ({ pattern: new RegExp(pattern, 'gu'), whole: true });
// The group makes String.split return what separates the gaps, too.
const separates = (pattern: string): Pass => ({ pattern: new RegExp(`(${pattern})`, 'u'), whole: false });

const gpt2Words = matches(`${contractions}| ?\\p{L}+| ?\\p{N}+| ?${word}+|${spaces}`);
const modernWords = (digitsMax: number) =>
  matches(
    `${anyCaseContractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,${digitsMax}}| ?${word}+[\\r\\n]*|${space}*[\\r\\n]+|${spaces}`,
  );

const row = (passes: readonly Pass[], flags: Partial<PreTokenizer> = {}): PreTokenizer => ({
  passes,
  ignoreMerges: false,
  addBos: false,
  ...flags,
});

const gpt2 = row([gpt2Words]);
const digitByDigit = row([separates('\\p{N}'), gpt2Words]);
const llama3 = row([modernWords(3)], { ignoreMerges: true, addBos: true });
const qwen2 = row([modernWords(1)]);

const table: ReadonlyMap<string, PreTokenizer> = new Map([
  ['default', row([separates('[\\p{P}$+<=>^~|]+'), gpt2Words, separates('\\p{N}+'), separates('[0-9]{3}')])],
  ['gpt-2', gpt2],
  ['smollm', digitByDigit],
  ['starcoder', digitByDigit],
  ['refact', digitByDigit],
  ['command-r', digitByDigit],
  ['llama-bpe', llama3],
  ['llama3', llama3],
  ['llama-v3', llama3],
  ['qwen2', qwen2],
  ['deepseek-r1-qwen', qwen2],
]);

/** The row of a `tokenizer.ggml.pre` name; no name means `default`. Throws on a name that is not in the table. */
export function preTokenizer(name = 'default'): PreTokenizer {
  const found = table.get(name);
  if (found === undefined) {
    throw new Error(
      `Cannot build tokenizer: unknown pre-tokenizer: '${name}', known are ${[...table.keys()].join(', ')}`,
    );
  }
  return found;
}

/** Pieces of a text, in order; together they are the text. Each pass cuts the pieces of the one before, and sees no further than its piece. */
export function splitPieces(text: string, passes: readonly Pass[]): string[] {
  let pieces = [text];
  for (const { pattern, whole } of passes) {
    pieces = pieces.flatMap((piece) =>
      whole ? cutAll(piece, pattern) : piece.split(pattern).filter((part) => part.length > 0),
    );
  }
  return pieces;
}
