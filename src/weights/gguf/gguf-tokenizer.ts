// The vocabulary of a GGUF file as plain data.

import type { GgufTokenizerData } from '../types.ts';
import type { GgufMetadata } from './gguf-metadata.ts';

const prefix = 'tokenizer.ggml.';

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

/** undefined when the file has no vocabulary. */
export function ggufTokenizer(metadata: GgufMetadata): GgufTokenizerData | undefined {
  const model = metadata.string(`${prefix}model`);
  const tokensKey = `${prefix}tokens`;
  if (model === undefined || model === 'no_vocab' || model === 'none') return undefined;
  const tokens = metadata.strings(tokensKey);
  if (tokens === undefined) metadata.fail(tokensKey, `the vocabulary of the ${model} tokenizer is missing`);
  const data: Mutable<GgufTokenizerData> = { model, tokens };
  const tokenTypes = metadata.int32Array(`${prefix}token_type`);
  const scores = metadata.float32Array(`${prefix}scores`);
  if (tokenTypes !== undefined) data.tokenTypes = sameLength(metadata, 'token_type', tokenTypes, tokens.length);
  if (scores !== undefined) data.scores = sameLength(metadata, 'scores', scores, tokens.length);
  const set = <Key extends keyof GgufTokenizerData>(key: Key, value: GgufTokenizerData[Key] | undefined): void => {
    if (value !== undefined) data[key] = value;
  };
  const id = (name: string): number | undefined => tokenId(metadata, name, tokens.length);
  set('pre', metadata.string(`${prefix}pre`));
  set('merges', metadata.strings(`${prefix}merges`));
  set('bosId', id('bos_token_id'));
  set('eosId', id('eos_token_id'));
  set('eotId', id('eot_token_id'));
  set('eomId', id('eom_token_id'));
  set('unkId', id('unknown_token_id'));
  set('padId', id('padding_token_id'));
  // The spelling of the format.
  set('sepId', id('seperator_token_id') ?? id('separator_token_id'));
  set('clsId', id('cls_token_id'));
  set('addBos', metadata.boolean(`${prefix}add_bos_token`));
  set('addEos', metadata.boolean(`${prefix}add_eos_token`));
  set('addSpacePrefix', metadata.boolean(`${prefix}add_space_prefix`));
  if (model === 'llama' && metadata.string('general.architecture') === 'phi3') data.stripAfterSpecial = true;
  set('chatTemplate', metadata.string('tokenizer.chat_template'));
  set('toolTemplate', metadata.string('tokenizer.chat_template.tool_use'));
  return data;
}

/**
 * A token id from the metadata. Ids outside the vocabulary are refused, or dropped: some files write 2^32 - 1 for
 * "none".
 */
export function tokenId(metadata: GgufMetadata, name: string, vocabSize: number | undefined): number | undefined {
  const key = `${prefix}${name}`;
  const id = metadata.integer(key);
  if (id === undefined || id === 0xffff_ffff || id === -1) return undefined;
  if (id < 0 || (vocabSize !== undefined && id >= vocabSize))
    metadata.fail(key, `token id ${id} is outside the vocabulary of ${vocabSize ?? '?'} tokens`);
  return id;
}

function sameLength<T extends { readonly length: number }>(
  metadata: GgufMetadata,
  name: string,
  array: T,
  length: number,
): T {
  if (array.length !== length)
    metadata.fail(`${prefix}${name}`, `${array.length} entries for a vocabulary of ${length} tokens`);
  return array;
}
