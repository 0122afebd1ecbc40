// Models and texts that the tests of this room read, and a reader of GGUF metadata just large enough for them.

import { existsSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { GgufTokenizerData } from '../../src/text/gguf-tokenizer-data.ts';

export const sharedModels = resolve(import.meta.dirname, '../../../shared/models');
export const hasShared = existsSync(sharedModels);

type Metadata = Map<string, unknown>;

function readMetadata(file: string): Metadata {
  const bytes = readFileSync(file);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 8;
  const skip = (size: number) => (at += size) - size;
  const long = () => Number(view.getBigUint64(skip(8), true));
  const text = () => {
    const length = long();
    return bytes.toString('utf8', skip(length), at);
  };
  const scalars: Record<number, () => unknown> = {
    0: () => view.getUint8(skip(1)),
    4: () => view.getUint32(skip(4), true),
    5: () => view.getInt32(skip(4), true),
    6: () => view.getFloat32(skip(4), true),
    7: () => view.getUint8(skip(1)) === 1,
    8: text,
    10: long,
  };
  const value = (type: number): unknown => {
    if (type !== 9) return (scalars[type] as () => unknown)();
    const itemType = view.getUint32(skip(4), true);
    return Array.from({ length: long() }, () => value(itemType));
  };
  long();
  const metadata: Metadata = new Map();
  for (let count = long(); count > 0; count--) metadata.set(text(), value(view.getUint32(skip(4), true)));
  return metadata;
}

export function readGgufTokenizer(file: string): GgufTokenizerData & { chatTemplate: string | undefined } {
  const metadata = readMetadata(file);
  const get = <T>(key: string) => metadata.get(`tokenizer.ggml.${key}`) as T;
  return {
    model: get('model'),
    pre: get('pre'),
    tokens: get('tokens'),
    tokenTypes: get('token_type'),
    scores: get('scores'),
    merges: get('merges'),
    bosId: get('bos_token_id'),
    eosId: get('eos_token_id'),
    eotId: get('eot_token_id'),
    unkId: get('unknown_token_id'),
    padId: get('padding_token_id'),
    addBos: get('add_bos_token'),
    addEos: get('add_eos_token'),
    addSpacePrefix: get('add_space_prefix'),
    chatTemplate: metadata.get('tokenizer.chat_template') as string | undefined,
  };
}
