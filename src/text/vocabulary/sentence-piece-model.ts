// SentencePiece-style vocabularies of GGUF files: merges follow from the tokens and their scores.

import { encodeUtf8 } from '../utf8.ts';
import { cutAll } from './cut.ts';
import { type GgufTokenizerData, tokenType } from './gguf-tokenizer-data.ts';
import { PairMerger, PairTable } from './merge.ts';
import { PieceCache } from './piece-cache.ts';
import type { VocabularyModel } from './vocabulary-model.ts';

const escapedSpace = '\u2581';
// The symbol of any character that no token contains: it never merges.
const foreign = 0x7fffffff - 1;

interface Pairs {
  readonly table: PairTable;
  /** Code point to symbol, for each character that some token contains. */
  readonly chars: ReadonlyMap<number, number>;
}

/** Ranks of scores: the highest score merges first, equal scores leftmost first. */
function rankOf(scores: ArrayLike<number>): Map<number, number> {
  const distinct = [...new Set(Array.from(scores))].sort((a, b) => b - a);
  return new Map(distinct.map((score, rank) => [score, rank]));
}

// Two adjacent symbols merge when their joined text is a token, so each token gives the pairs of its possible halves.
function readPairs(data: GgufTokenizerData, ids: ReadonlyMap<string, number>): Pairs {
  const { scores } = data;
  if (scores === undefined || scores.length !== data.tokens.length) {
    throw new Error(
      `Cannot build tokenizer: a llama vocabulary needs a score for each token: ${scores?.length ?? 0} scores, ${data.tokens.length} tokens`,
    );
  }
  const ranks = rankOf(scores);
  const chars = new Map<number, number>();
  let splits = 0;
  for (const token of ids.keys()) {
    splits += token.length;
    for (const char of token) {
      const code = char.codePointAt(0) as number;
      if (!chars.has(code)) chars.set(code, ids.get(char) ?? data.tokens.length + chars.size);
    }
  }
  const symbolOf = (text: string) => {
    const id = ids.get(text);
    if (id !== undefined) return id;
    const code = text.codePointAt(0) as number;
    return text.length === (code > 0xffff ? 2 : 1) ? chars.get(code) : undefined;
  };
  const table = new PairTable(splits);
  for (const [token, id] of ids) {
    const rank = ranks.get(scores[id] as number) as number;
    for (let at = 1; at < token.length; at++) {
      const left = symbolOf(token.slice(0, at));
      const right = left === undefined ? undefined : symbolOf(token.slice(at));
      if (left !== undefined && right !== undefined) table.add(left, right, rank, id);
    }
  }
  return { table, chars };
}

/** SentencePiece-style vocabulary with byte fallback (`tokenizer.ggml.model` = `llama`). */
export class SentencePieceModel implements VocabularyModel {
  readonly addSpacePrefix: boolean;
  readonly #data: GgufTokenizerData;
  readonly #chars: ReadonlyMap<number, number>;
  readonly #merger: PairMerger;
  /** (256): fallback id of each byte. */
  readonly #byteIds: readonly (number | undefined)[];
  /**
   * Splits before a run of spaces; exact if no token has a space after another character. undefined: some token has
   * one.
   */
  readonly #words: RegExp | undefined;
  readonly #cache = new PieceCache();

  constructor(data: GgufTokenizerData) {
    this.#data = data;
    this.addSpacePrefix = data.addSpacePrefix ?? true;
    const ids = new Map(data.tokens.map((token, id) => [token, id]));
    const { table, chars } = readPairs(data, ids);
    this.#chars = chars;
    this.#merger = new PairMerger(table);
    this.#byteIds = Array.from({ length: 256 }, (_, byte) => {
      const name = `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
      return ids.get(name) ?? ids.get(String.fromCharCode(byte)) ?? data.unkId;
    });
    const spaceInside = data.tokens.some((token) => /[^\u2581]\u2581/u.test(token));
    this.#words = spaceInside ? undefined : /\u2581*[^\u2581]+|\u2581+/gu;
  }

  encode(text: string, atStart: boolean, out: number[]): void {
    const escaped = (atStart && this.addSpacePrefix ? ' ' : '') + text;
    const plain = escaped.replaceAll(' ', escapedSpace);
    const words = this.#words === undefined ? [plain] : cutAll(plain, this.#words);
    for (const word of words) {
      let ids = this.#cache.get(word);
      if (ids === undefined) {
        ids = this.#encodeWord(word);
        this.#cache.put(word, ids);
      }
      for (const id of ids) out.push(id);
    }
  }

  bytes(id: number): Uint8Array {
    const token = this.#data.tokens[id] as string;
    const type = this.#data.tokenTypes?.[id];
    if (type === tokenType.byte) {
      const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1];
      if (byte !== undefined) return Uint8Array.of(Number.parseInt(byte, 16));
    }
    return encodeUtf8(type === tokenType.userDefined ? token : token.replaceAll(escapedSpace, ' '));
  }

  #encodeWord(word: string): Int32Array {
    const codes = Array.from(word, (char) => char.codePointAt(0) as number);
    const symbols = Int32Array.from(codes, (code) => this.#chars.get(code) ?? foreign);
    const ids: number[] = [];
    this.#merger.merge(symbols, symbols.length, (index) => {
      const symbol = symbols[index] as number;
      if (symbol < this.#data.tokens.length) ids.push(symbol);
      else this.#emitBytes(codes[index] as number, ids);
    });
    return Int32Array.from(ids);
  }

  #emitBytes(code: number, ids: number[]): void {
    for (const byte of encodeUtf8(String.fromCodePoint(code))) {
      const id = this.#byteIds[byte];
      if (id !== undefined) ids.push(id);
    }
  }
}
