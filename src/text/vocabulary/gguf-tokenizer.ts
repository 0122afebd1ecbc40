// Tokenizers built from the `tokenizer.ggml.*` metadata of a GGUF file.

import type { EncodeOptions, Tokenizer } from '../tokenizer.ts';
import { encodeUtf8, toWellFormed } from '../utf8.ts';
import { BytePairModel } from './byte-pair-model.ts';
import { type GgufTokenizerData, tokenType } from './gguf-tokenizer-data.ts';
import { createHuggingFaceTokenizer } from './hugging-face-tokenizer.ts';
import { SentencePieceModel } from './sentence-piece-model.ts';
import type { VocabularyModel } from './vocabulary-model.ts';
import { wordPieceTokenizerJson } from './word-piece-vocabulary.ts';

// GGUF has no list of end tokens, and many files name only one. These control tokens end a turn in every vocabulary
// that has them.
const endOfTurnTexts = new Set([
  '<|eot_id|>',
  '<|eom_id|>',
  '<|im_end|>',
  '<|end|>',
  '<|endoftext|>',
  '<|end_of_text|>',
  '<end_of_turn>',
  '<EOT>',
]);

/** @throws Error `Cannot build tokenizer: ...` for inconsistent metadata or an unknown kind */
export function createGgufTokenizer(data: GgufTokenizerData): Tokenizer {
  checkData(data);
  if (data.model === 'llama') {
    const model = new SentencePieceModel(data);
    return new GgufTokenizer(data, model, { addBos: true, addsSpacePrefix: model.addSpacePrefix });
  }
  if (data.model === 'bert') return createHuggingFaceTokenizer({ tokenizer: wordPieceTokenizerJson(data) });
  const model = new BytePairModel(data);
  return new GgufTokenizer(data, model, { addBos: model.pre.addBos, addsSpacePrefix: false });
}

function checkData(data: GgufTokenizerData): void {
  if (!['gpt2', 'llama', 'bert'].includes(data.model)) {
    throw new Error(`Cannot build tokenizer: unknown model: '${data.model}', known are bert, gpt2, llama`);
  }
  const size = data.tokens.length;
  if (data.tokenTypes !== undefined && data.tokenTypes.length !== size) {
    throw new Error(`Cannot build tokenizer: token types do not fit: ${data.tokenTypes.length} types, ${size} tokens`);
  }
  for (const key of ['bosId', 'eosId', 'eotId', 'eomId', 'unkId', 'padId', 'sepId', 'clsId'] as const) {
    const id = data[key];
    if (id !== undefined && !(Number.isInteger(id) && id >= 0 && id < size)) {
      throw new Error(`Cannot build tokenizer: ${key} is outside the vocabulary: ${id}, ${size} tokens`);
    }
  }
}

interface Defaults {
  readonly addBos: boolean;
  readonly addsSpacePrefix: boolean;
}

class GgufTokenizer implements Tokenizer {
  readonly vocabSize: number;
  readonly bosId: number | undefined;
  readonly eosIds: readonly number[];
  readonly specialIds: ReadonlySet<number>;
  readonly addsSpacePrefix: boolean;
  readonly #tokens: readonly string[];
  readonly #model: VocabularyModel;
  readonly #userDefined: ReadonlySet<number>;
  readonly #prefix: readonly number[];
  readonly #suffix: readonly number[];
  /** Splits at all special and user-defined tokens, or at user-defined tokens only. */
  readonly #splitAll: SpecialSplitter;
  readonly #splitUserDefined: SpecialSplitter;
  /** Tokens that absorb the white space after them. */
  readonly #stripping: ReadonlySet<number>;
  readonly #bytes: (Uint8Array | undefined)[];

  constructor(data: GgufTokenizerData, model: VocabularyModel, defaults: Defaults) {
    const idsOfType = (...types: number[]) =>
      data.tokens.map((_, id) => id).filter((id) => types.includes(data.tokenTypes?.[id] ?? tokenType.normal));
    const splitter = (ids: Iterable<number>) =>
      new SpecialSplitter(new Map(Array.from(ids, (id) => [data.tokens[id] as string, id])));
    this.vocabSize = data.tokens.length;
    this.bosId = data.bosId;
    this.addsSpacePrefix = defaults.addsSpacePrefix;
    this.specialIds = new Set(idsOfType(tokenType.control, tokenType.unknown));
    this.eosIds = findEosIds(data, this.specialIds);
    this.#tokens = data.tokens;
    this.#model = model;
    this.#userDefined = new Set(idsOfType(tokenType.userDefined));
    this.#prefix = (data.addBos ?? defaults.addBos) && data.bosId !== undefined ? [data.bosId] : [];
    this.#suffix = data.addEos === true && data.eosId !== undefined ? [data.eosId] : [];
    this.#splitAll = splitter([...this.#userDefined, ...this.specialIds]);
    this.#splitUserDefined = splitter(this.#userDefined);
    this.#stripping = new Set(
      data.stripAfterSpecial ? [...this.#userDefined, ...this.specialIds].filter((id) => !keepsSpace(data, id)) : [],
    );
    this.#bytes = new Array(this.vocabSize);
  }

  encode(text: string, options: EncodeOptions = {}): number[] {
    const { addSpecial = true, parseSpecial = true } = options;
    const out: number[] = addSpecial ? [...this.#prefix] : [];
    const parts = (parseSpecial ? this.#splitAll : this.#splitUserDefined).split(toWellFormed(text));
    let before: number | undefined;
    let atStart = true;
    for (const part of parts) {
      if (typeof part === 'number') {
        out.push(part);
        before = part;
        atStart = true;
        continue;
      }
      const text = before !== undefined && this.#stripping.has(before) ? part.replace(leadingSpace, '') : part;
      if (text.length === 0) continue;
      this.#model.encode(text, atStart, out);
      atStart = false;
    }
    if (addSpecial) out.push(...this.#suffix);
    return out;
  }

  decodeBytes(id: number): Uint8Array {
    return this.isSpecial(id) ? noBytes : this.tokenBytes(id);
  }

  tokenBytes(id: number): Uint8Array {
    const token = this.#tokens[id];
    if (token === undefined) return noBytes;
    let bytes = this.#bytes[id];
    if (bytes === undefined) {
      const verbatim = this.isSpecial(id) || this.#userDefined.has(id);
      bytes = verbatim ? encodeUtf8(token) : this.#model.bytes(id);
      this.#bytes[id] = bytes;
    }
    return bytes;
  }

  isSpecial(id: number): boolean {
    return this.specialIds.has(id);
  }
}

const noBytes = new Uint8Array(0);
const leadingSpace = /^[ \t\n\v\f\r]+/;

function keepsSpace(data: GgufTokenizerData, id: number): boolean {
  return id === data.bosId || id === data.unkId || data.tokens[id] === '<|endoftext|>';
}

function findEosIds(data: GgufTokenizerData, specialIds: ReadonlySet<number>): number[] {
  const named = [data.eosId, data.eotId, data.eomId].filter((id) => id !== undefined);
  const known = [...specialIds].filter((id) => endOfTurnTexts.has(data.tokens[id] as string));
  return [...new Set([...named, ...known])];
}

/** Splits a text at token texts: the leftmost first, and of several with the same start the longest. */
class SpecialSplitter {
  readonly #ids: ReadonlyMap<string, number>;
  readonly #pattern: RegExp | undefined;

  constructor(ids: ReadonlyMap<string, number>) {
    this.#ids = ids;
    const texts = [...ids.keys()].filter((text) => text.length > 0).sort((a, b) => b.length - a.length);
    const alternatives = texts.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'));
    this.#pattern = texts.length > 0 ? new RegExp(`(${alternatives.join('|')})`, 'u') : undefined;
  }

  /** Parts of plain text (never empty) and token ids, in order. */
  split(text: string): (string | number)[] {
    if (text.length === 0) return [];
    if (this.#pattern === undefined) return [text];
    const parts = text.split(this.#pattern);
    // With a capturing group, every second part is a separator.
    return parts.flatMap<string | number>((part, index) => {
      if (index % 2 === 0) return part.length > 0 ? [part] : [];
      return [this.#ids.get(part) as number];
    });
  }
}
