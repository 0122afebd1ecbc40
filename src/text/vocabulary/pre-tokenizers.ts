// How byte-level BPE splits a text into pieces before merging: one row for each pre-tokenizer name of GGUF.

import { cutAll } from './cut.ts';

/** One pass over the pieces. `coversAll`: the pattern matches every character, so there are no gaps to keep. */
interface Pass {
  readonly pattern: RegExp;
  readonly coversAll: boolean;
}

export interface PreTokenizer {
  readonly passes: readonly Pass[];
  /** A piece that is a token is used as it is, without merging. */
  readonly ignoreMerges: boolean;
  /** Whether a sequence begins with the bos token by default. */
  readonly addBos: boolean;
}

// Unicode's White_Space. JavaScript's \s differs: it includes U+FEFF and lacks U+0085.
const space = '\\p{White_Space}';
const word = `[^${space}\\p{L}\\p{N}]`;
const contractions = "'(?:s|t|re|ve|m|ll|d)";
const anyCaseContractions = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])";
// Leaves the last of several spaces to the following word.
const spaces = `${space}+(?!\\P{White_Space})|${space}+`;

const matches = (pattern: string): Pass => ({ pattern: new RegExp(pattern, 'gu'), coversAll: true });
// The capturing group makes String.split also return the separators.
const separates = (pattern: string): Pass => ({ pattern: new RegExp(`(${pattern})`, 'u'), coversAll: false });

const gpt2Words = matches(`${contractions}| ?\\p{L}+| ?\\p{N}+| ?${word}+|${spaces}`);
const modernWords = (digitsMax: number) =>
  matches(
    `${anyCaseContractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,${digitsMax}}| ?${word}+[\\r\\n]*|${space}*[\\r\\n]+|${spaces}`,
  );

// Cased letters of the scripts in DeepSeek's tokenizer.json; other cased letters are split like symbols.
const deepseekLetters = `(?:(?![\\u0560-\\u0588\\u10c7-\\u10ff\\u1c80-\\u1c8f\\u2d00-\\u2d2d\\ua790-\\ua7fa\\uab30-\\uab68\\u{10570}-\\u{105bf}\\u{10d50}-\\u{10d8f}\\u{16e40}-\\u{16eff}\\u{1d400}-\\u{1d7cb}\\u{1df00}-\\u{1df2f}])\\p{LC})+`;
// White space inside these ranges counts only as space, as in llama.cpp.
const eastAsian = `(?:(?!${space})[\\u0800-\\u9fa5\\uac00-\\ud7ff])+`;

// Case decides where a word ends; a letter without case belongs to either side.
const upper = '[\\p{L}--[a-z]]';
const lower = '[\\p{L}--[A-Z]]';
const casedWords = (suffix: string, digitsMax: number): Pass => {
  const edge = '[^\\r\\n\\p{L}\\p{N}]?';
  const pattern = `${edge}${upper}*${lower}+${suffix}|${edge}${upper}+${lower}*${suffix}|\\p{N}{1,${digitsMax}}| ?${word}+[\\r\\n\\/]*|${space}*[\\r\\n]+|${spaces}`;
  return { pattern: new RegExp(pattern, 'gv'), coversAll: true };
};

const row = (passes: readonly Pass[], flags: Partial<PreTokenizer> = {}): PreTokenizer => ({
  passes,
  ignoreMerges: false,
  addBos: false,
  ...flags,
});

const gpt2 = row([gpt2Words]);
const digitByDigit = row([separates('\\p{N}'), gpt2Words]);
const threeDigits = row([modernWords(3)]);
const llama3 = row([modernWords(3)], { ignoreMerges: true, addBos: true });
const qwen2 = row([modernWords(1)]);
const deepseek = row([
  separates('[\\r\\n]'),
  separates(`${space}?${deepseekLetters}`),
  separates(`${space}?[!-\\/:-~\\uff01-\\uff0f\\uff1a-\\uff5e\\u2018-\\u201f\\u3001\\u3002]+`),
  // Tried at the first space of a run alone: from each of them it would take quadratic time.
  separates(`(?<!${space})${space}+$`),
  separates(eastAsian),
  separates('\\p{N}+'),
]);
const deepseekCoder = row([
  separates('[\\r\\n]'),
  separates(`${space}?\\p{L}+`),
  separates(`${space}?\\p{P}+`),
  separates(eastAsian),
  separates('\\p{N}'),
]);
const falcon = row([separates('[\\p{P}$+<=>^~|`]+'), gpt2Words, separates('[0-9]{3}')]);
const gpt4o = row([casedWords(`(?:${anyCaseContractions})?`, 3)]);
const tekken = row([casedWords('', 1)], { ignoreMerges: true, addBos: true });

const names: readonly (readonly [PreTokenizer, string])[] = [
  [row([separates('[\\p{P}$+<=>^~|]+'), gpt2Words, separates('\\p{N}+'), separates('[0-9]{3}')]), 'default'],
  [gpt2, 'gpt-2 phi-2 mpt olmo jais exaone4 trillion gigachat mellum a.x-4.0'],
  [digitByDigit, 'smollm starcoder refact command-r codeshell exaone minerva-7b'],
  [llama3, 'llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2'],
  [threeDigits, 'dbrx smaug-bpe glm4 chatglm-bpe'],
  [qwen2, 'qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan'],
  [deepseek, 'deepseek-llm'],
  [deepseekCoder, 'deepseek-coder'],
  [falcon, 'falcon'],
  [gpt4o, 'gpt-4o llama4 kanana2'],
  [tekken, 'tekken'],
];

const table: ReadonlyMap<string, PreTokenizer> = new Map(
  names.flatMap(([found, list]) => list.split(' ').map((name) => [name, found] as const)),
);

/** Valid names of `tokenizer.ggml.pre`. */
export const preTokenizerNames: readonly string[] = [...table.keys()];

/** The row of a `tokenizer.ggml.pre` name; no name means `default`. @throws Error for an unknown name */
export function preTokenizer(name = 'default'): PreTokenizer {
  const found = table.get(name);
  if (found === undefined) {
    throw new Error(
      `Cannot build tokenizer: unknown pre-tokenizer: '${name}', known are ${preTokenizerNames.join(', ')}`,
    );
  }
  return found;
}

/**
 * Pieces of a text, in order; concatenated they are the text. Each pass splits the pieces of the previous pass
 * separately.
 */
export function splitPieces(text: string, passes: readonly Pass[]): string[] {
  let pieces = [text];
  for (const { pattern, coversAll } of passes) {
    pieces = pieces.flatMap((piece) =>
      coversAll ? cutAll(piece, pattern) : piece.split(pattern).filter((part) => part.length > 0),
    );
  }
  return pieces;
}
