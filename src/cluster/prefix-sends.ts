// Prefixes on their way from an instance to others: their blocks are pinned until they have left.
import type { BlockCache } from '../policy/blocks/block-cache.ts';
import type { BlockChain } from '../policy/blocks/block-chain.ts';
import { BlockTable } from '../policy/blocks/block-table.ts';
import type { InstanceEffect } from './effects.ts';
import type { InstanceIndex } from './messages.ts';
import type { RequestId } from './ports.ts';

/** The instance, as its sends see it. */
interface Owner {
  readonly push: (effect: InstanceEffect<never, never>) => void;
  /** Would those that run still get what they need, with so many pages fewer? */
  readonly spares: (pages: number) => boolean;
}

/** A prefix is sent as far as it is here. One that is here no further than where the other side has it, or for which nothing can be pinned, is `missing`. */
export class PrefixSends {
  readonly #cache: BlockCache;
  readonly #owner: Owner;
  /** By receiver and request. */
  readonly #sending = new Map<string, BlockTable>();

  constructor(cache: BlockCache, owner: Owner) {
    this.#cache = cache;
    this.#owner = owner;
  }

  get size(): number {
    return this.#sending.size;
  }

  /** Blocks `from..` of the chain are wanted. False when they are being sent already. */
  send(to: InstanceIndex, id: RequestId, chain: BlockChain, from: number): boolean {
    const key = keyOf(to, id);
    if (this.#sending.has(key)) return false;
    const cache = this.#cache;
    const blocks = cache.match(chain, chain.blocks);
    const tokens = blocks * cache.blockTokens;
    if (blocks <= from || !this.#owner.spares(cache.pagesToRun(chain, blocks, { tokens, rows: tokens }))) {
      this.#owner.push({ kind: 'send', to, message: { kind: 'missing', id } });
      return true;
    }
    const table = new BlockTable(cache.groups.length, blocks);
    cache.share(chain, blocks, table);
    cache.moving.add(table);
    this.#sending.set(key, table);
    this.#owner.push({ kind: 'streamPrefix', id, to, tokens: tokens - from * cache.blockTokens, blocks });
    return true;
  }

  /** It has left. False when it was not being sent. */
  sent(to: InstanceIndex, id: RequestId): boolean {
    const key = keyOf(to, id);
    const table = this.#sending.get(key);
    if (table === undefined) return false;
    this.#sending.delete(key);
    this.#cache.moving.delete(table);
    this.#cache.release(table);
    return true;
  }

  /** Nobody wants it any more. False when it was not being sent. */
  stop(to: InstanceIndex, id: RequestId): boolean {
    if (!this.sent(to, id)) return false;
    this.#owner.push({ kind: 'stopStream', id, to, of: 'prefix' });
    return true;
  }
}

function keyOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}
