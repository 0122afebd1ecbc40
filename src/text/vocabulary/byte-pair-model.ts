// Byte-level byte pair encoding, GPT-2's vocabulary form, with the merges of the file.

import { encodeUtf8 } from '../utf8.ts';
import { byteChars, byteLevelBytes } from './byte-level.ts';
import type { GgufTokenizerData } from './gguf-tokenizer-data.ts';
import { PairMerger, PairTable } from './merge.ts';
import { PieceCache } from './piece-cache.ts';
import { type PreTokenizer, preTokenizer, splitPieces } from './pre-tokenizers.ts';
import type { VocabularyModel } from './vocabulary-model.ts';

interface Symbols {
  /** Text to symbol: token ids first, then symbols that only occur as parts of a token. */
  readonly ids: Map<string, number>;
  /** Texts of the symbols beyond the vocabulary. */
  readonly extra: string[];
  readonly vocabSize: number;
}

function symbolOf(symbols: Symbols, text: string): number {
  const known = symbols.ids.get(text);
  if (known !== undefined) return known;
  const id = symbols.vocabSize + symbols.extra.length;
  symbols.extra.push(text);
  symbols.ids.set(text, id);
  return id;
}

function readMerges(merges: readonly string[], symbols: Symbols): PairTable {
  const pairs = new PairTable(merges.length);
  merges.forEach((merge, rank) => {
    // The first part may begin with a space.
    const gap = merge.indexOf(' ', 1);
    if (gap < 0) throw new Error(`Cannot build tokenizer: merge ${rank} is not a pair: '${merge}'`);
    const left = merge.slice(0, gap);
    const right = merge.slice(gap + 1);
    pairs.add(symbolOf(symbols, left), symbolOf(symbols, right), rank, symbolOf(symbols, left + right));
  });
  return pairs;
}

/** Byte-level BPE of a GGUF vocabulary (`tokenizer.ggml.model` = `gpt2`). */
export class BytePairModel implements VocabularyModel {
  readonly pre: PreTokenizer;
  readonly #tokens: readonly string[];
  readonly #symbols: Symbols;
  /** (256): symbol of each byte. */
  readonly #byteSymbols: Int32Array;
  readonly #merger: PairMerger;
  readonly #cache = new PieceCache();

  constructor(data: GgufTokenizerData) {
    if (data.merges === undefined)
      throw new Error('Cannot build tokenizer: a gpt2 vocabulary needs merges: none given');
    this.pre = preTokenizer(data.pre);
    this.#tokens = data.tokens;
    const ids = new Map(data.tokens.map((token, id) => [token, id]));
    this.#symbols = { ids, extra: [], vocabSize: data.tokens.length };
    this.#byteSymbols = Int32Array.from(byteChars, (char) => symbolOf(this.#symbols, char));
    this.#merger = new PairMerger(readMerges(data.merges, this.#symbols));
  }

  encode(text: string, _atStart: boolean, out: number[]): void {
    for (const piece of splitPieces(text, this.pre.passes)) {
      let ids = this.#cache.get(piece);
      if (ids === undefined) {
        ids = this.#encodePiece(piece);
        this.#cache.put(piece, ids);
      }
      for (const id of ids) out.push(id);
    }
  }

  bytes(id: number): Uint8Array {
    return byteLevelBytes(this.#tokens[id] as string);
  }

  #encodePiece(piece: string): Int32Array {
    const bytes = encodeUtf8(piece);
    if (this.pre.ignoreMerges) {
      let text = '';
      for (const byte of bytes) text += byteChars[byte];
      const id = this.#symbols.ids.get(text);
      if (id !== undefined && id < this.#tokens.length) return Int32Array.of(id);
    }
    const symbols = Int32Array.from(bytes, (byte) => this.#byteSymbols[byte] as number);
    const ids: number[] = [];
    this.#merger.merge(symbols, symbols.length, (index) => this.#emit(symbols[index] as number, ids));
    return Int32Array.from(ids);
  }

  // A symbol without a token is split into its ASCII characters; a byte that the vocabulary lacks is dropped.
  #emit(symbol: number, ids: number[]): void {
    const { extra, vocabSize } = this.#symbols;
    if (symbol < vocabSize) {
      ids.push(symbol);
      return;
    }
    for (const char of extra[symbol - vocabSize] as string) {
      const id = char < '\x80' ? this.#symbols.ids.get(char) : undefined;
      if (id !== undefined && id < vocabSize) ids.push(id);
    }
  }
}
