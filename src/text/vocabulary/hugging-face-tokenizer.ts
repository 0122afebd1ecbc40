// Tokenizers of Hugging Face directories (tokenizer.json), by means of Hugging Face's JavaScript library.

import { Tokenizer as Library } from '@huggingface/tokenizers';
import { oneLine } from '../../util/one-line.ts';
import type { EncodeOptions, Tokenizer } from '../tokenizer.ts';
import { decodeUtf8, encodeUtf8, toWellFormed } from '../utf8.ts';
import { byteLevelBytes } from './byte-level.ts';
import { createPreTokenizer, type HuggingFacePreTokenizer, patternOf } from './hugging-face-pre-tokenizer.ts';

/** Far above any real vocabulary. The library iterates over all numbers up to the largest id. */
const idMax = 2 ** 22;

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
}

/** The members of the library that are used here. */
interface LibraryTokenizer {
  pre_tokenizer: HuggingFacePreTokenizer | null;
  encode(text: string, options: { add_special_tokens: boolean }): { readonly ids: number[] };
  token_to_id(token: string): number | undefined;
  id_to_token(id: number): string | undefined;
  get_vocab(): ReadonlyMap<string, number>;
}

type Json = Readonly<Record<string, unknown>>;

/** Parsed files of a model directory. */
export interface HuggingFaceTokenizerFiles {
  /** tokenizer.json */
  readonly tokenizer: unknown;
  /** tokenizer_config.json */
  readonly config?: unknown;
  /** special_tokens_map.json */
  readonly specialTokensMap?: unknown;
}

/** @throws Error `Cannot build tokenizer: ...` for files in an unknown or invalid form */
export function createHuggingFaceTokenizer(files: HuggingFaceTokenizerFiles): Tokenizer {
  if (!isObject(files.tokenizer)) throw new Error('Cannot build tokenizer: tokenizer.json is not an object');
  const config = isObject(files.config) ? files.config : {};
  const specialMap = isObject(files.specialTokensMap) ? files.specialTokensMap : {};
  try {
    return new HuggingFaceTokenizer(files.tokenizer, config, specialMap);
  } catch (error) {
    const reason = reasonOf(error);
    throw reason.startsWith('Cannot ') ? error : new Error(`Cannot build tokenizer: tokenizer.json: ${reason}`);
  }
}

class HuggingFaceTokenizer implements Tokenizer {
  readonly vocabSize: number;
  readonly bosId: number | undefined;
  readonly eosIds: readonly number[];
  readonly specialIds: ReadonlySet<number>;
  readonly addsSpacePrefix: boolean;
  readonly #json: Json;
  readonly #config: Json;
  readonly #preTokenizer: HuggingFacePreTokenizer | null;
  readonly #library: LibraryTokenizer;
  /** Ids around a text; found on first use. */
  #addedIds: readonly [before: readonly number[], after: readonly number[]] | undefined;
  /** Does not parse special tokens in a text; built on first use. */
  #librarySkippingSpecial: LibraryTokenizer | undefined;
  readonly #added: ReadonlyMap<number, AddedToken>;
  readonly #bytesOf: (token: string) => Uint8Array;
  readonly #bytes: (Uint8Array | undefined)[] = [];

  constructor(json: Json, config: Json, specialMap: Json) {
    this.#json = json;
    this.#config = config;
    this.#preTokenizer = createPreTokenizer(json.pre_tokenizer);
    const added = addedTokens(json);
    if (isObject(json.model)) checkIds(json.model.vocab);
    this.#library = this.#createLibrary(json);
    this.#added = new Map(added.map((token) => [token.id, token]));
    const idOf = (key: string) => {
      const text = tokenText(config[key]) ?? tokenText(specialMap[key]);
      return text === undefined ? undefined : this.#library.token_to_id(text);
    };
    const eosId = idOf('eos_token');
    this.bosId = idOf('bos_token');
    this.eosIds = eosId === undefined ? [] : [eosId];
    const special = added.filter((token) => token.special === true).map((token) => token.id);
    this.specialIds = new Set([...special, ...[this.bosId, eosId].filter((id) => id !== undefined)]);
    this.vocabSize = 1 + greatestId(this.#library.get_vocab());
    const steps = decoderSteps(json.decoder);
    this.addsSpacePrefix = steps.some(stripsSpace);
    this.#bytesOf = bytesReader(steps);
  }

  encode(text: string, options: EncodeOptions = {}): number[] {
    const { addSpecial = true, parseSpecial = true } = options;
    const library = parseSpecial ? this.#library : this.#withoutSpecial();
    try {
      const ids = checkedIds(library.encode(toWellFormed(text), { add_special_tokens: false }).ids);
      if (!addSpecial) return ids;
      this.#addedIds ??= this.#findAddedIds();
      const [before, after] = this.#addedIds;
      return [...before, ...ids, ...after];
    } catch (error) {
      // The library detects some invalid parts of tokenizer.json only when it uses them.
      throw new Error(`Cannot tokenize text: ${reasonOf(error)}`);
    }
  }

  decodeBytes(id: number): Uint8Array {
    return this.isSpecial(id) ? noBytes : this.tokenBytes(id);
  }

  tokenBytes(id: number): Uint8Array {
    const known = this.#bytes[id];
    if (known !== undefined) return known;
    const added = this.#added.get(id);
    const token = added?.content ?? this.#library.id_to_token(id);
    if (token === undefined) return noBytes;
    let bytes = this.#bytesOf(token);
    // An added token is text. A byte-level decoder makes an incomplete character of some letters, such as 'é'.
    if (added !== undefined && decodeUtf8(bytes).includes('\ufffd')) bytes = encodeUtf8(token);
    this.#bytes[id] = bytes;
    return bytes;
  }

  isSpecial(id: number): boolean {
    return this.specialIds.has(id);
  }

  #withoutSpecial(): LibraryTokenizer {
    if (this.#librarySkippingSpecial !== undefined) return this.#librarySkippingSpecial;
    const ordinary = addedTokens(this.#json).filter((token) => token.special !== true);
    const library = this.#createLibrary({ ...this.#json, added_tokens: ordinary });
    this.#librarySkippingSpecial = library;
    return library;
  }

  #createLibrary(json: Json): LibraryTokenizer {
    const library = new Library({ ...json, pre_tokenizer: null }, this.#config) as unknown as LibraryTokenizer;
    library.pre_tokenizer = this.#preTokenizer;
    return library;
  }

  /**
   * Ids before and after a text. The post-processor is applied to a sample; `add_bos_token` and `add_eos_token` of
   * tokenizer_config.json decide about the begin and end tokens, as in transformers.
   */
  #findAddedIds(): readonly [before: readonly number[], after: readonly number[]] {
    const bare = this.#library.encode('a', { add_special_tokens: false }).ids;
    const withSpecial = this.#library.encode('a', { add_special_tokens: true }).ids;
    const extra = withSpecial.length - bare.length;
    let count = 0;
    while (count < extra && bare.some((id, i) => withSpecial[count + i] !== id)) count++;
    const { add_bos_token: addBos, add_eos_token: addEos } = this.#config;
    const eosId = this.eosIds[0];
    let before = withSpecial.slice(0, count);
    let after = withSpecial.slice(count + bare.length);
    if (typeof addBos === 'boolean' && this.bosId !== undefined)
      before = [...(addBos ? [this.bosId] : []), ...before.filter((id) => id !== this.bosId)];
    if (typeof addEos === 'boolean' && eosId !== undefined)
      after = [...after.filter((id) => id !== eosId), ...(addEos ? [eosId] : [])];
    return [checkedIds(before), checkedIds(after)];
  }
}

const reasonCharactersMax = 300;
const reasonOf = (error: unknown): string =>
  oneLine(error instanceof Error ? error.message : String(error), reasonCharactersMax);

const noBytes = new Uint8Array(0);

/** The ids, checked: a vocabulary without an unknown token may lack a part of the text. */
function checkedIds(ids: number[]): number[] {
  if (ids.every((id) => Number.isInteger(id))) return ids;
  throw new Error('the vocabulary has no token for a part of it');
}

function greatestId(vocabulary: ReadonlyMap<string, number>): number {
  let greatest = -1;
  for (const id of vocabulary.values()) greatest = Math.max(greatest, id);
  return greatest;
}

const isId = (value: unknown): value is number =>
  Number.isInteger(value) && Number(value) >= 0 && Number(value) <= idMax;

/** Checks the ids of a vocabulary, or of one vocabulary for each language. */
function checkIds(vocabulary: unknown): void {
  if (!isObject(vocabulary)) return;
  for (const [token, id] of Object.entries(vocabulary)) {
    if (isObject(id)) checkIds(id);
    else if (!isId(id)) throw new Error(`token '${token}' has the id ${JSON.stringify(id)}`);
  }
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function addedTokens(json: Json): readonly AddedToken[] {
  const list: unknown = json.added_tokens ?? [];
  if (!Array.isArray(list)) throw new Error('added_tokens is not a list');
  return list.map((token: unknown, index) => {
    if (!isAddedToken(token)) throw new Error(`added_tokens[${index}] lacks id or content`);
    if (!isId(token.id)) throw new Error(`token '${token.content}' has the id ${token.id}`);
    return token;
  });
}

function isAddedToken(value: unknown): value is AddedToken {
  return isObject(value) && Number.isInteger(value.id) && typeof value.content === 'string';
}

/** A special token is a string or an object with `content`. */
function tokenText(value: unknown): string | undefined {
  const text = isObject(value) ? value.content : value;
  return typeof text === 'string' ? text : undefined;
}

/** The decoder's steps as a flat list. */
function decoderSteps(decoder: unknown): readonly Json[] {
  if (!isObject(decoder)) return [];
  if (decoder.type !== 'Sequence') return [decoder];
  const steps: unknown = decoder.decoders;
  return Array.isArray(steps) ? steps.flatMap(decoderSteps) : [];
}

function stripsSpace(step: Json): boolean {
  if (step.type === 'Strip') return step.content === ' ' && Number(step.start) > 0;
  if (step.type === 'WordPiece') return true;
  return step.type === 'Metaspace' && step.prepend_scheme !== 'never' && step.add_prefix_space !== false;
}

/**
 * Bytes of one token by the decoder's steps, as for any token of a sequence. The library decodes whole sequences to
 * text only, which loses the bytes of incomplete characters.
 */
function bytesReader(steps: readonly Json[]): (token: string) => Uint8Array {
  const readers = steps.map(stepReader);
  return (token) => {
    let text = token;
    for (const read of readers) {
      const next = read(text);
      if (typeof next !== 'string') return next;
      text = next;
    }
    return encodeUtf8(text);
  };
}

/** The text of a token after one step of the decoder, or its bytes if the step decodes to bytes. */
function stepReader(step: Json): (token: string) => string | Uint8Array {
  switch (step.type) {
    case 'ByteLevel':
      return byteLevelBytes;
    case 'ByteFallback':
      return (token) => {
        const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1];
        return byte === undefined ? token : Uint8Array.of(Number.parseInt(byte, 16));
      };
    case 'Metaspace': {
      const space = tokenText(step.replacement) ?? '\u2581';
      return (token) => token.replaceAll(space, ' ');
    }
    case 'Replace': {
      const pattern = patternOf(step.pattern);
      const content = tokenText(step.content) ?? '';
      return (token) => token.replace(pattern, () => content);
    }
    case 'WordPiece': {
      const inWord = tokenText(step.prefix) ?? '##';
      return (token) => (token.startsWith(inWord) ? token.slice(inWord.length) : ` ${token}`);
    }
    case 'Fuse':
    case 'Strip':
      return (token) => token;
    default:
      throw new Error(`Cannot build tokenizer: unknown decoder: '${String(step.type)}'`);
  }
}
