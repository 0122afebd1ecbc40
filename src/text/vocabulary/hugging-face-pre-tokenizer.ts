// The pre-tokenizers of tokenizer.json: how a text is split before the vocabulary is applied.

import * as library from '@huggingface/tokenizers';
import { encodeUtf8 } from '../utf8.ts';
import { byteChars } from './byte-level.ts';

/** The library's own types do not resolve. */
const { SplitPreTokenizer } = library as unknown as {
  readonly SplitPreTokenizer: new (json: object) => { readonly pattern: RegExp | null };
};

type Json = Readonly<Record<string, unknown>>;

/** Splits a piece of text; `atStart`: the piece begins the text. */
type Split = (piece: string, atStart: boolean) => readonly string[];

/** Splits a text into the pieces that the model encodes separately. */
export type HuggingFacePreTokenizer = (text: string, options?: { readonly section_index?: number }) => string[];

/**
 * Hugging Face's JavaScript library ignores the behaviour of some splits, so its pre-tokenizers are not used.
 * @throws Error for an unknown kind or behaviour
 */
export function createPreTokenizer(json: unknown): HuggingFacePreTokenizer | null {
  if (json === null || json === undefined) return null;
  const split = splitOf(json);
  return (text, options) => [...split(text, options?.section_index === 0)].filter((piece) => piece !== '');
}

function splitOf(json: unknown): Split {
  if (!isObject(json)) throw new Error('a pre-tokenizer is not an object');
  switch (json.type) {
    case 'Sequence':
      return sequence(Array.isArray(json.pretokenizers) ? json.pretokenizers.map(splitOf) : []);
    case 'Split':
      return splitAt(patternOf(json.pattern), behaviorOf(json), json.invert === true);
    case 'Digits':
      return splitAt(json.individual_digits === true ? /\p{N}/gu : /\p{N}+/gu, 'isolated');
    case 'Punctuation':
      return splitAt(new RegExp(`[${punctuation}]`, 'gu'), behaviorOf(json));
    case 'ByteLevel':
      return byteLevel(json);
    case 'Metaspace':
      return metaspace(json);
    case 'Whitespace':
      return (piece) => piece.match(words) ?? [];
    case 'WhitespaceSplit':
      return (piece) => piece.match(/\P{White_Space}+/gu) ?? [];
    case 'BertPreTokenizer':
      return (piece) => piece.match(bertWords) ?? [];
    case 'FixedLength':
      return fixedLength(Number(json.length));
    default:
      throw new Error(`unknown pre-tokenizer: '${String(json.type)}'`);
  }
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const punctuation = '\\p{P}!-\\/:-@\\[-`{-~';
const wordChars = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d';
const words = new RegExp(`[${wordChars}]+|[^${wordChars}\\p{White_Space}]+`, 'gu');
const bertWords = new RegExp(`[${punctuation}]|[^${punctuation}\\p{White_Space}]+`, 'gu');

function sequence(splits: readonly Split[]): Split {
  return (text, atStart) =>
    splits.reduce<readonly string[]>(
      (pieces, split) => pieces.flatMap((piece, index) => split(piece, atStart && index === 0)),
      [text],
    );
}

const behaviors = ['removed', 'isolated', 'mergedwithprevious', 'mergedwithnext', 'contiguous'] as const;
type Behavior = (typeof behaviors)[number];

/** What happens to the matches of a pattern; default: each is a piece. */
function behaviorOf({ type, behavior = 'Isolated' }: Json): Behavior {
  const found = behaviors.find((name) => name === String(behavior).toLowerCase());
  if (found === undefined) throw new Error(`unknown behavior of ${String(type)}: '${String(behavior)}'`);
  return found;
}

interface Part {
  text: string;
  readonly matched: boolean;
}

function splitAt(pattern: RegExp, behavior: Behavior, inverted = false): Split {
  return (piece) => {
    const parts = partsOf(piece, pattern, inverted);
    if (behavior === 'removed') return parts.filter(({ matched }) => !matched).map(({ text }) => text);
    const merged: Part[] = [];
    for (const part of parts) {
      const last = merged.at(-1);
      if (last !== undefined && joins(behavior, last, part)) merged[merged.length - 1] = joined(behavior, last, part);
      else merged.push(part);
    }
    return merged.map(({ text }) => text);
  };
}

function joins(behavior: Behavior, last: Part, part: Part): boolean {
  if (behavior === 'contiguous') return last.matched === part.matched;
  if (behavior === 'mergedwithprevious') return part.matched && !last.matched;
  return behavior === 'mergedwithnext' && last.matched && !part.matched;
}

/** A match that joined a neighbour takes no second one. */
function joined(behavior: Behavior, last: Part, part: Part): Part {
  return { text: last.text + part.text, matched: behavior === 'mergedwithprevious' ? true : part.matched };
}

/** The matches and the texts between them, in order; neither is empty. */
function partsOf(text: string, pattern: RegExp, inverted: boolean): Part[] {
  const parts: Part[] = [];
  let end = 0;
  const add = (from: number, to: number, matched: boolean): void => {
    if (to > from) parts.push({ text: text.slice(from, to), matched: matched !== inverted });
  };
  try {
    for (const match of text.matchAll(pattern)) {
      add(end, match.index, false);
      end = match.index + match[0].length;
      add(match.index, end, true);
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Error(`a word in it is too long: the text has ${text.length} characters`);
  }
  add(end, text.length, false);
  return parts;
}

/** GPT-2's words, for a byte-level pre-tokenizer that splits by itself. */
const byteLevelWords = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

function byteLevel(json: Json): Split {
  const split: Split =
    json.use_regex === false ? (piece) => [piece] : splitAt(patternOf({ Regex: byteLevelWords }), 'isolated');
  return (piece, atStart) => {
    const text = json.add_prefix_space === true && !piece.startsWith(' ') ? ` ${piece}` : piece;
    return split(text, atStart).map(toByteChars);
  };
}

function toByteChars(text: string): string {
  let chars = '';
  for (const byte of encodeUtf8(text)) chars += byteChars[byte];
  return chars;
}

function metaspace(json: Json): Split {
  const space = typeof json.replacement === 'string' ? json.replacement : '\u2581';
  const scheme = json.prepend_scheme ?? (json.add_prefix_space === false ? 'never' : 'always');
  const split = json.split === false ? undefined : splitAt(patternOf({ String: space }), 'mergedwithnext');
  return (piece, atStart) => {
    const spaced = piece.replaceAll(' ', space);
    const prepends = !spaced.startsWith(space) && (scheme === 'always' || (scheme === 'first' && atStart));
    const text = prepends ? space + spaced : spaced;
    return split === undefined ? [text] : split(text, atStart);
  };
}

function fixedLength(length: number): Split {
  if (!(Number.isInteger(length) && length > 0)) throw new Error(`FixedLength has the length ${length}`);
  const pattern = new RegExp(`[\\s\\S]{1,${length}}`, 'gu');
  return (piece) => piece.match(pattern) ?? [];
}

/**
 * A `{ Regex }` or `{ String }` of tokenizer.json as a global regular expression; the library translates Oniguruma's
 * syntax.
 */
export function patternOf(pattern: unknown): RegExp {
  const regex = isObject(pattern) ? pattern.Regex : undefined;
  const text = isObject(pattern) ? pattern.String : pattern;
  const source =
    typeof regex === 'string' ? { Regex: withRunsFromTheirStart(withoutPossessives(regex)) } : { String: String(text) };
  const compiled = new SplitPreTokenizer({ type: 'Split', pattern: source, behavior: 'Isolated', invert: true })
    .pattern;
  if (compiled === null) throw new Error('a Split has no pattern');
  return compiled;
}

const token = /\\[pPxu]\{[^}]*\}|\\.|\(\?(?:<[=!]|<\w+>|[:=!>]|\w+:)|\{\d*,?\d*\}|./gsu;

/**
 * The pattern with each possessive quantifier as a captured lookahead, which has no backtracking either. The library
 * reads `X++` as `X+`, which gives other matches before `$` and before a lookahead.
 */
function withoutPossessives(regex: string): string {
  if (!/[+*?]\+/.test(regex)) return regex;
  let out = '';
  let atom = 0;
  let groups = 0;
  const open: number[] = [];
  const tokens = tokensOf(regex);
  for (let i = 0; i < tokens.length; i++) {
    const part = tokens[i] as string;
    const next = tokens[i + 1];
    if (/^[+*?]$/.test(part) && next === '+') {
      const name = `possessive${groups++}`;
      out = `${out.slice(0, atom)}(?=(?<${name}>${out.slice(atom)}${part}))\\k<${name}>`;
      i++;
      continue;
    }
    if (part.startsWith('(')) open.push(out.length);
    if (part === ')') atom = open.pop() ?? 0;
    else if (!/^(?:[+*?]|\{.*\})$/.test(part)) atom = out.length;
    out += part;
  }
  return out;
}

/**
 * DeepSeek's `\s+$`, and other runs of one atom at the end of the text. They are tried at the first character of a run
 * alone: from each of them a long run inside the text takes quadratic time.
 */
function withRunsFromTheirStart(regex: string): string {
  const [atom, ...rest] = tokensOf(regex);
  return rest.join('') === '+$' ? `(?<!${atom})${regex}` : regex;
}

/** Atoms, brackets and quantifiers; a character class is one part. */
function tokensOf(regex: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  for (const [part] of regex.matchAll(token)) {
    if (depth > 0) parts[parts.length - 1] += part;
    else parts.push(part);
    if (part === '[') depth++;
    else if (part === ']' && depth > 0) depth--;
  }
  return parts;
}
