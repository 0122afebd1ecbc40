// Prefixes that are being sent to other instances: their blocks are pinned until they have been sent.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import { type PinnedPrefix, pinPrefix } from '../../kvcache/prefix-transfer.ts';
import { pagesOfRange } from '../../kvcache/stage-pages.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import { type LayerRange, layersBetween } from '../../protocol/step-shape.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';

/** The blocks of a chain from `from` on, of some layers or all. */
export interface PrefixSlice {
  readonly chain: BlockChain;
  readonly from: number;
  readonly range?: LayerRange | undefined;
}

interface Sending {
  readonly pinned: PinnedPrefix;
  readonly blocks: number;
}

/** A prefix is sent as far as it is cached. If nothing is cached beyond `from`, or nothing can be pinned, the answer is `missing`. */
export class PrefixSends {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  /** By receiver and request. */
  readonly #sending = new Map<string, Sending>();

  /** Blocks that have been sent. */
  blocks = 0;

  constructor(context: InstanceContext<Identified, RunningRequest>) {
    this.#cache = context.kvCache;
    this.#context = context;
  }

  get size(): number {
    return this.#sending.size;
  }

  /** Sends a prefix. False when it is being sent already. */
  send(to: InstanceIndex, id: RequestId, { chain, from, range }: PrefixSlice): boolean {
    const key = keyOf(to, id);
    if (this.#sending.has(key)) return false;
    const pinned = this.#has(range) ? pinPrefix(this.#cache, chain, from, this.#context.scheduler) : undefined;
    if (pinned === undefined) {
      this.#context.emit({ kind: 'send', to, message: { kind: 'prefixMissing', id } });
      return true;
    }
    const { blocks } = pinned;
    this.#sending.set(key, { pinned, blocks: blocks - from });
    const pages =
      this.#context.config.contents !== undefined ? { pages: this.#ofRange(pinned.pages(from), range) } : {};
    const tokens = (blocks - from) * this.#cache.blockTokens;
    this.#context.emit({ kind: 'streamPrefix', id, to, tokens, blocks, range, ...pages });
    return true;
  }

  /** The range comes from another instance, so it is validated. */
  #has(range: LayerRange | undefined): boolean {
    if (range === undefined || this.#context.config.contents === undefined) return true;
    const { layers } = this.#cache.groups[0];
    const { from, to } = layersBetween(layers, range);
    return from < to && to <= layers;
  }

  #ofRange(pages: Int32Array, range: LayerRange | undefined): Int32Array {
    const { layers } = this.#cache.groups[0];
    return range === undefined ? pages : pagesOfRange(pages, layers, layersBetween(layers, range));
  }

  /** True while the prefix is being sent there. */
  has(to: InstanceIndex, id: RequestId): boolean {
    return this.#sending.has(keyOf(to, id));
  }

  /** Blocks that are being sent there. */
  blocksOf(to: InstanceIndex, id: RequestId): number {
    return this.#sending.get(keyOf(to, id))?.blocks ?? 0;
  }

  /** The prefix has been sent. False when it was not being sent. */
  sent(to: InstanceIndex, id: RequestId): boolean {
    const key = keyOf(to, id);
    const sending = this.#sending.get(key);
    if (sending === undefined) return false;
    this.#sending.delete(key);
    this.blocks += sending.blocks;
    sending.pinned.close();
    return true;
  }

  /** The receiver no longer needs it. False when it was not being sent. */
  stop(to: InstanceIndex, id: RequestId): boolean {
    const blocks = this.blocksOf(to, id);
    if (!this.sent(to, id)) return false;
    this.blocks -= blocks;
    this.#context.emit({ kind: 'stopStream', id, to, of: 'prefix' });
    return true;
  }
}

function keyOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}
