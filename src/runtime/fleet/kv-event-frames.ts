// Reads the KV events of vLLM and SGLang: batches in MessagePack, with events as maps or as positional arrays.
import type { EngineBlockHash, EngineKvBatch, EngineKvEvent, EngineMedium } from '../../core/fleet/engine-kv-event.ts';
import { decodeMsgpack, type MsgpackValue } from './msgpack.ts';

/** Fields in the order of positional events, which vLLM published before events were maps. */
const positions: Readonly<Record<string, readonly string[]>> = {
  BlockStored: [
    ...['block_hashes', 'parent_block_hash', 'token_ids', 'block_size', 'lora_id', 'medium', 'lora_name', 'extra_keys'],
    ...['group_idx', 'kv_cache_spec_kind', 'kv_cache_spec_sliding_window'],
  ],
  BlockRemoved: ['block_hashes', 'medium', 'group_idx'],
  AllBlocksCleared: [],
};

const media: Readonly<Record<string, EngineMedium>> = {
  GPU: 'device',
  CPU: 'host',
  CPU_PINNED: 'host',
  STORAGE: 'disk',
  DISK: 'disk',
  EXTERNAL: 'remote',
};

/** Groups whose blocks hold every token of a sequence; the blocks of other groups say nothing about a whole prefix. */
const fullKinds: ReadonlySet<string> = new Set(['full_attention', 'mla_attention', 'sink_full_attention', 'unknown']);

type Fields = Readonly<Record<string, MsgpackValue>>;

/** The events of one publisher. The layer groups of a model are learned from its stored blocks. */
export class KvEventReader {
  /** Layer groups with blocks that do not stand for a whole prefix. */
  readonly #partialGroups = new Set<number>();

  /** @throws Error in one line if the payload is not a batch of KV events */
  read(payload: Uint8Array): EngineKvBatch {
    const batch = decodeMsgpack(payload);
    if (!Array.isArray(batch)) throw unreadable('it is not an array');
    const [atS, events, rank] = batch as readonly MsgpackValue[];
    if (typeof atS !== 'number' || !Array.isArray(events)) throw unreadable('its head is not [time, events]');
    return {
      atS,
      rank: typeof rank === 'number' ? rank : undefined,
      events: (events as readonly MsgpackValue[]).flatMap((event) => this.#event(event) ?? []),
    };
  }

  /** Undefined: the event does not concern whole prefixes, or has a kind of a later version. */
  #event(value: MsgpackValue): EngineKvEvent | undefined {
    const fields = fieldsOf(value);
    const group = typeof fields.group_idx === 'number' ? fields.group_idx : 0;
    switch (fields.type) {
      case 'BlockStored':
        if (isPartial(fields)) this.#partialGroups.add(group);
        return this.#partialGroups.has(group) ? undefined : storedEvent(fields);
      case 'BlockRemoved':
        if (this.#partialGroups.has(group)) return undefined;
        return { kind: 'removed', hashes: hashesOf(fields.block_hashes), medium: mediumOf(fields) };
      case 'AllBlocksCleared':
        return { kind: 'cleared' };
      default:
        return undefined;
    }
  }
}

function isPartial({ kv_cache_spec_kind: kind }: Fields): boolean {
  return typeof kind === 'string' && !fullKinds.has(kind);
}

function storedEvent(fields: Fields): EngineKvEvent | undefined {
  const { block_hashes, parent_block_hash: parent, token_ids, block_size: blockTokens } = fields;
  const hashes = hashesOf(block_hashes);
  if (!Array.isArray(token_ids) || typeof blockTokens !== 'number') throw unreadable('a stored block has no tokens');
  // Groups with masked blocks report fewer hashes than tokens: their tokens cannot be assigned.
  if (hashes.length === 0 || token_ids.length !== hashes.length * blockTokens) return undefined;
  const tokens = Int32Array.from(token_ids as readonly MsgpackValue[], Number);
  return {
    ...{ kind: 'stored', hashes, tokens, blockTokens, medium: mediumOf(fields) },
    parent: parent === undefined ? undefined : hashOf(parent),
    extraKeys: extraKeysOf(fields, hashes.length),
  };
}

/** (blocks): the salt of the first block; a salt alone is the text that requests name. */
function extraKeysOf({ extra_keys, cache_salt, lora_name, lora_id, parent_block_hash }: Fields, blocks: number) {
  const adapter = lora_name ?? lora_id;
  const own = Array.isArray(extra_keys) ? (extra_keys as readonly MsgpackValue[]) : [];
  if (own.length === 0 && cache_salt === undefined && adapter === undefined) return undefined;
  return Array.from({ length: blocks }, (_, i): string => {
    const isFirst = i === 0 && parent_block_hash === undefined;
    const keys = Array.isArray(own[i]) ? (own[i] as readonly MsgpackValue[]) : [];
    const rest = keys.filter((key) => key !== adapter);
    const salt = isFirst ? [...rest, ...(cache_salt === undefined ? [] : [cache_salt])] : rest;
    const named = isFirst && adapter !== undefined ? ['adapter', String(adapter), ...salt] : salt;
    const [only] = named;
    if (named.length === 0) return '';
    return named.length === 1 && typeof only === 'string' ? only : JSON.stringify(named, plain);
  });
}

function plain(_: string, value: unknown): unknown {
  if (typeof value === 'bigint') return String(value);
  return value instanceof Uint8Array ? Buffer.from(value).toString('hex') : value;
}

function mediumOf({ medium, locality }: Fields): EngineMedium {
  if (locality === 'REMOTE') return 'remote';
  return media[String(medium ?? 'GPU').toUpperCase()] ?? 'remote';
}

function fieldsOf(value: MsgpackValue): Fields {
  if (Array.isArray(value)) {
    const [type, ...rest] = value as readonly MsgpackValue[];
    const names = positions[String(type)] ?? [];
    return { type, ...Object.fromEntries(names.map((name, i) => [name, rest[i]])) };
  }
  if (typeof value !== 'object' || value instanceof Uint8Array)
    throw unreadable('an event is neither a map nor an array');
  return value as Fields;
}

function hashesOf(value: MsgpackValue): readonly EngineBlockHash[] {
  if (!Array.isArray(value)) throw unreadable('an event has no block hashes');
  return (value as readonly MsgpackValue[]).map(hashOf);
}

function hashOf(value: MsgpackValue): EngineBlockHash {
  if (value instanceof Uint8Array) return Buffer.from(value).toString('base64');
  if (typeof value === 'number' || typeof value === 'bigint' || typeof value === 'string') return value;
  throw unreadable('a block hash is neither a number nor bytes');
}

function unreadable(why: string): Error {
  return new Error(`Cannot read KV events: ${why}`);
}
