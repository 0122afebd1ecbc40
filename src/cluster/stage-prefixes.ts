// Prefixes of prompts that groups compute: each member gets the keys and values of its layers, from its own cache or from whoever has them.
import type { BlockCache } from '../policy/blocks/block-cache.ts';
import type { BlockChain } from '../policy/blocks/block-chain.ts';
import { prefixHere } from '../policy/blocks/moving-prefix.ts';
import type { LayerRange } from '../policy/cost/step-shape.ts';
import { digestWords } from '../util/blake2s.ts';
import type { Push } from './hand-offs.ts';
import type { GroupPrefix, InstanceIndex } from './messages.ts';
import type { RequestId } from './ports.ts';

interface Awaited {
  /** It was awaited already when somebody looked last. */
  old: boolean;
  readonly source: InstanceIndex;
  /** Blocks that are here. */
  readonly own: number;
  /** The request has keys and values of so many tokens here. */
  readonly here: (tokens: number) => void;
}

/** They come into the room that the stage keeps for its layers: what is here is copied there, so nothing of the cache is held. */
export class StagePrefixes<Request> {
  readonly #cache: BlockCache;
  readonly #push: Push<Request>;
  readonly #awaited = new Map<RequestId, Awaited>();

  constructor(cache: BlockCache, push: Push<Request>) {
    this.#cache = cache;
    this.#push = push;
  }

  want(id: RequestId, chain: BlockChain, prefix: GroupPrefix, range: LayerRange, here: (tokens: number) => void): void {
    const { from: source, blocks } = prefix;
    const wanted = { blocks, words: chain.words.slice(0, blocks * digestWords) };
    const own = prefixHere(this.#cache, wanted, blocks);
    if (own >= blocks) {
      here(blocks * this.#cache.blockTokens);
      return;
    }
    this.#awaited.set(id, { old: false, source, own, here });
    this.#push({ kind: 'send', to: source, message: { kind: 'fetch', id, chain: wanted, from: own, range } });
  }

  /** The source has done its part: blocks before `to` are here. False when nobody waits for that. */
  came(id: RequestId, source: InstanceIndex | 'ssd', to: number): boolean {
    const awaited = this.#awaited.get(id);
    if (awaited?.source !== source) return false;
    this.#awaited.delete(id);
    awaited.here(Math.max(awaited.own, to) * this.#cache.blockTokens);
    return true;
  }

  /** What has not come since the last time but one may be lost: whoever waits for it goes on with what is here. */
  giveUp(): void {
    for (const [id, awaited] of [...this.#awaited]) {
      if (awaited.old) {
        this.drop(id);
        awaited.here(awaited.own * this.#cache.blockTokens);
      }
      awaited.old = true;
    }
  }

  /** It is not wanted any more. */
  drop(id: RequestId): void {
    const awaited = this.#awaited.get(id);
    if (awaited === undefined) return;
    this.#awaited.delete(id);
    this.#push({ kind: 'send', to: awaited.source, message: { kind: 'unwanted', id } });
  }
}
