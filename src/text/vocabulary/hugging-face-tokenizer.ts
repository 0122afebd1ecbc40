// Tokenizers of Hugging Face directories (tokenizer.json), by means of Hugging Face's JavaScript library.

import { Tokenizer as Library } from '@huggingface/tokenizers';
import { oneLine } from '../../util/one-line.ts';
import type { EncodeOptions, Tokenizer } from '../tokenizer.ts';
import { encodeUtf8, toWellFormed } from '../utf8.ts';
import { byteLevelBytes } from './byte-level.ts';

/** Far above any real vocabulary. The library iterates over all numbers up to the largest id. */
const idMax = 2 ** 22;

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
}

/** The members of the library that are used here. */
interface LibraryTokenizer {
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
  readonly #library: LibraryTokenizer;
  /** Does not parse special tokens in a text; built on first use. */
  #librarySkippingSpecial: LibraryTokenizer | undefined;
  readonly #added: ReadonlyMap<number, AddedToken>;
  readonly #bytesOf: (token: string) => Uint8Array;
  readonly #bytes: (Uint8Array | undefined)[] = [];

  constructor(json: Json, config: Json, specialMap: Json) {
    this.#json = { ...json, pre_tokenizer: exactPreTokenizer(json.pre_tokenizer) };
    this.#config = config;
    const added = addedTokens(json);
    if (isObject(json.model)) checkIds(json.model.vocab);
    this.#library = new Library(this.#json, config);
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
    const wellFormed = toWellFormed(text);
    try {
      if (parseSpecial) return checkedIds(this.#library.encode(wellFormed, { add_special_tokens: addSpecial }).ids);
      const plain = checkedIds(this.#withoutSpecial().encode(wellFormed, { add_special_tokens: false }).ids);
      return addSpecial ? this.#addSpecialIds(plain) : plain;
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
    const bytes = added !== undefined || this.isSpecial(id) ? encodeUtf8(token) : this.#bytesOf(token);
    this.#bytes[id] = bytes;
    return bytes;
  }

  isSpecial(id: number): boolean {
    return this.specialIds.has(id);
  }

  #withoutSpecial(): LibraryTokenizer {
    if (this.#librarySkippingSpecial !== undefined) return this.#librarySkippingSpecial;
    const ordinary = addedTokens(this.#json).filter((token) => token.special !== true);
    const library = new Library({ ...this.#json, added_tokens: ordinary }, this.#config);
    this.#librarySkippingSpecial = library;
    return library;
  }

  // Encodes a sample with and without special tokens to find what the post-processor adds around a text.
  #addSpecialIds(ids: readonly number[]): number[] {
    const bare = this.#library.encode('a', { add_special_tokens: false }).ids;
    const withSpecial = this.#library.encode('a', { add_special_tokens: true }).ids;
    const extra = withSpecial.length - bare.length;
    let before = 0;
    while (before < extra && bare.some((id, i) => withSpecial[before + i] !== id)) before++;
    return [...withSpecial.slice(0, before), ...ids, ...withSpecial.slice(before + bare.length)];
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
  return step.type === 'Metaspace' && step.prepend_scheme !== 'never' && step.add_prefix_space !== false;
}

// Bytes of one token. The library decodes whole sequences to text only, which loses the bytes of incomplete characters.
function bytesReader(steps: readonly Json[]): (token: string) => Uint8Array {
  const types = steps.map((step) => step.type);
  if (types.includes('ByteLevel')) return byteLevelBytes;
  const unknown = types.find(
    (type) => !['ByteFallback', 'Metaspace', 'Replace', 'Fuse', 'Strip'].includes(String(type)),
  );
  if (unknown !== undefined) throw new Error(`Cannot build tokenizer: unknown decoder: '${String(unknown)}'`);
  const withBytes = types.includes('ByteFallback');
  const replaced = steps.flatMap(replacement);
  return (token) => {
    const byte = withBytes ? /^<0x([0-9A-Fa-f]{2})>$/.exec(token)?.[1] : undefined;
    if (byte !== undefined) return Uint8Array.of(Number.parseInt(byte, 16));
    return encodeUtf8(replaced.reduce((text, [from, to]) => text.replaceAll(from, to), token));
  };
}

function replacement(step: Json): (readonly [string, string])[] {
  if (step.type === 'Metaspace') return [[tokenText(step.replacement) ?? '\u2581', ' ']];
  if (step.type !== 'Replace') return [];
  const pattern = isObject(step.pattern) ? step.pattern.String : undefined;
  const content = step.content;
  return typeof pattern === 'string' && typeof content === 'string' ? [[pattern, content]] : [];
}

// ByteLevel's pattern. In a Split the library reads \s as Unicode white space, in its own ByteLevel it does not.
const byteLevelWords = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const isolate = (regex: string): Json => ({
  type: 'Split',
  pattern: { Regex: regex },
  behavior: 'Isolated',
  invert: false,
});

/** An equivalent pre-tokenizer for the library, which would use JavaScript's digits and white space in some kinds. */
function exactPreTokenizer(preTokenizer: unknown): unknown {
  if (typeof preTokenizer !== 'object' || preTokenizer === null || !('type' in preTokenizer)) return preTokenizer;
  const step: Json = { ...preTokenizer };
  switch (step.type) {
    case 'Sequence':
      return Array.isArray(step.pretokenizers)
        ? { ...step, pretokenizers: step.pretokenizers.map(exactPreTokenizer) }
        : step;
    case 'Digits':
      return isolate(step.individual_digits === true ? '\\p{N}' : '\\p{N}+');
    case 'ByteLevel':
      // With a prefix space, the split would have to follow it.
      if (step.use_regex === false || step.add_prefix_space === true) return step;
      return { type: 'Sequence', pretokenizers: [isolate(byteLevelWords), { ...step, use_regex: false }] };
    default:
      return step;
  }
}
