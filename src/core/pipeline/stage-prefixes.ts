// Prefixes of prompts that groups compute: each member gets the keys and values of its layers, from its own cache or from whoever has them.

import { digestWords } from '../../util/blake2s.ts';
import type { BlockCache } from '../kvcache/block-cache.ts';
import { localPages, localPrefix, touchPrefix } from '../kvcache/prefix-transfer.ts';
import { StagePages } from '../kvcache/stage-pages.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';
import type { Push } from '../transfer/hand-off/hand-offs.ts';
import { type PipelineStage, rangeOf } from './pipeline-stage.ts';

interface Awaited {
  readonly source: InstanceIndex;
  /** Blocks that are here. */
  readonly own: number;
  /** What has not come by then is computed. */
  readonly untilUs: number;
  /** The request has keys and values of so many tokens here. */
  readonly here: (tokens: number) => void;
}

/** The instance, as these see it. */
interface Owner<Request> {
  readonly push: Push<Request>;
  readonly nowUs: () => number;
  /** Blocks have contents: effects say where they are. */
  readonly contents: boolean;
}

type Wanting = Pick<PipelineStage<unknown, RunningRequest>, 'served' | 'group' | 'index'>;

/** They come into the room that the stage keeps for its layers: what is here is copied there, so nothing of the cache is held. */
export class StagePrefixes<Request> {
  readonly #cache: BlockCache;
  readonly #owner: Owner<Request>;
  readonly #awaited = new Map<RequestId, Awaited>();

  constructor(cache: BlockCache, owner: Owner<Request>) {
    this.#cache = cache;
    this.#owner = owner;
  }

  /** When patience ends for something that is under way. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#awaited.size === 0) return nextUs;
    for (const { untilUs } of this.#awaited.values()) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** The stage is about to keep room: what is here of its prefix is not what makes it. */
  touch(stage: Wanting): void {
    const { chain, blocks } = this.#wantedOf(stage);
    if (blocks > 0) touchPrefix(this.#cache, chain, blocks);
  }

  /** @param here told at once, or when the rest has come or will not */
  want(stage: Wanting, here: (tokens: number) => void): void {
    const { served, group, index } = stage;
    const { chain, blocks } = this.#wantedOf(stage);
    const own = localPrefix(this.#cache, chain, blocks);
    if (this.#owner.contents && own > 0) this.#copy(stage, chain, own);
    const { from: source, patienceUs = 0 } = group.prefix ?? {};
    if (own >= blocks || source === undefined || source === group.members[index]) {
      here(own * this.#cache.blockTokens);
      return;
    }
    const { id } = served;
    this.#awaited.set(id, { source, own, untilUs: this.#owner.nowUs() + patienceUs, here });
    if (this.#owner.contents)
      this.#owner.push({ kind: 'expectPrefix', id, from: source, pages: this.#room(stage).pages(own, blocks) });
    this.#owner.push({
      kind: 'send',
      to: source,
      message: { kind: 'fetch', id, chain, from: own, range: rangeOf(stage) },
    });
  }

  #wantedOf({ served: { sequence }, group: { prefix } }: Wanting): {
    readonly chain: BlockChain;
    readonly blocks: number;
  } {
    const { chain } = sequence;
    const blocks = Math.min(prefix?.blocks ?? 0, chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
    return { blocks, chain: { blocks, words: chain.words.slice(0, blocks * digestWords) } };
  }

  /** Models that groups compute have one layer group. */
  #room(stage: Wanting): StagePages {
    return new StagePages(stage.served.sequence.table.groups[0], this.#cache.groups[0].pool, rangeOf(stage));
  }

  #copy(stage: Wanting, chain: BlockChain, blocks: number): void {
    const room = this.#room(stage);
    const from = room.ofRange(localPages(this.#cache, chain, blocks));
    this.#owner.push({ kind: 'copyPrefix', from, to: room.pages(0, blocks) });
  }

  /** The source has done its part: blocks before `to` are here. False when nobody waits for that. */
  came(id: RequestId, source: InstanceIndex | 'ssd', to: number): boolean {
    const awaited = this.#awaited.get(id);
    if (awaited?.source !== source) return false;
    this.#awaited.delete(id);
    awaited.here(Math.max(awaited.own, to) * this.#cache.blockTokens);
    return true;
  }

  /** Whoever waits for what takes too long goes on with what is here. */
  advance(nowUs: number): void {
    if (this.#awaited.size === 0) return;
    for (const [id, { own, untilUs, here }] of [...this.#awaited]) {
      if (untilUs > nowUs) continue;
      this.drop(id);
      here(own * this.#cache.blockTokens);
    }
  }

  /** It is not wanted any more. */
  drop(id: RequestId): void {
    const awaited = this.#awaited.get(id);
    if (awaited === undefined) return;
    this.#awaited.delete(id);
    if (this.#owner.contents) this.#owner.push({ kind: 'closePrefix', id });
    this.#owner.push({ kind: 'send', to: awaited.source, message: { kind: 'unwanted', id } });
  }
}
