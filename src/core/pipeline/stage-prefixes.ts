// Prefixes of prompts that groups compute: each member gets the keys and values of its layers, from its own cache or from whoever has them.

import { digestWords } from '../../util/blake2s.ts';
import type { BlockCache } from '../kvcache/block-cache.ts';
import { localPages, localPrefix, touchPrefix } from '../kvcache/prefix-transfer.ts';
import { StagePages } from '../kvcache/stage-pages.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { Identified, InstanceContext } from '../scheduler/component.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';
import { type PipelineStage, rangeOf } from './pipeline-stage.ts';

interface Awaited {
  readonly source: InstanceIndex;
  /** Blocks that are here. */
  readonly own: number;
  /** What has not come by then is computed. */
  readonly untilUs: number;
  readonly stage: Stage;
}

type Stage = PipelineStage<unknown, RunningRequest>;

/** Takes the prefix of a stage, once it is here or will not come. */
interface PrefixTarget {
  prefixReady(stage: Stage, tokens: number): void;
}

/** They come into the room that the stage keeps for its layers: what is here is copied there, so nothing of the cache is held. */
export class StagePrefixes {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #target: PrefixTarget;
  readonly #awaited = new Map<RequestId, Awaited>();

  constructor(context: InstanceContext<Identified, RunningRequest>, target: PrefixTarget) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#target = target;
  }

  get #hasContents(): boolean {
    return this.#context.config.contents !== undefined;
  }

  /** When patience ends for something that is under way. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#awaited.size === 0) return nextUs;
    for (const { untilUs } of this.#awaited.values()) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** The stage is about to keep room: what is here of its prefix is not what makes it. */
  touch(stage: Stage): void {
    const { chain, blocks } = this.#wantedOf(stage);
    if (blocks > 0) touchPrefix(this.#cache, chain, blocks);
  }

  /** `prefixReady` is called immediately, or when the rest has come or will not. */
  want(stage: Stage): void {
    const { served, group, index } = stage;
    const { chain, blocks } = this.#wantedOf(stage);
    const own = localPrefix(this.#cache, chain, blocks);
    if (this.#hasContents && own > 0) this.#copy(stage, chain, own);
    const { from: source, patienceUs = 0 } = group.prefix ?? {};
    if (own >= blocks || source === undefined || source === group.members[index]) {
      this.#target.prefixReady(stage, own * this.#cache.blockTokens);
      return;
    }
    const { id } = served;
    this.#awaited.set(id, { source, own, untilUs: this.#context.nowUs + patienceUs, stage });
    if (this.#hasContents)
      this.#context.emit({ kind: 'expectPrefix', id, from: source, pages: this.#room(stage).pages(own, blocks) });
    this.#context.emit({
      kind: 'send',
      to: source,
      message: { kind: 'fetch', id, chain, from: own, range: rangeOf(stage) },
    });
  }

  #wantedOf({ served: { sequence }, group: { prefix } }: Stage): {
    readonly chain: BlockChain;
    readonly blocks: number;
  } {
    const { chain } = sequence;
    const blocks = Math.min(prefix?.blocks ?? 0, chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
    return { blocks, chain: { blocks, words: chain.words.slice(0, blocks * digestWords) } };
  }

  /** Models that groups compute have one layer group. */
  #room(stage: Stage): StagePages {
    return new StagePages(stage.served.sequence.table.groups[0], this.#cache.groups[0].pool, rangeOf(stage));
  }

  #copy(stage: Stage, chain: BlockChain, blocks: number): void {
    const room = this.#room(stage);
    const from = room.ofRange(localPages(this.#cache, chain, blocks));
    this.#context.emit({ kind: 'copyPrefix', from, to: room.pages(0, blocks) });
  }

  /** The source has done its part: blocks before `to` are here. False when nobody waits for that. */
  arrived(id: RequestId, source: InstanceIndex | 'ssd', to: number): boolean {
    const awaited = this.#awaited.get(id);
    if (awaited?.source !== source) return false;
    this.#awaited.delete(id);
    this.#target.prefixReady(awaited.stage, Math.max(awaited.own, to) * this.#cache.blockTokens);
    return true;
  }

  /** Whoever waits for what takes too long goes on with what is here. */
  advance(nowUs: number): void {
    if (this.#awaited.size === 0) return;
    for (const [id, { own, untilUs, stage }] of [...this.#awaited]) {
      if (untilUs > nowUs) continue;
      this.drop(id);
      this.#target.prefixReady(stage, own * this.#cache.blockTokens);
    }
  }

  /** It is not wanted any more. */
  drop(id: RequestId): void {
    const awaited = this.#awaited.get(id);
    if (awaited === undefined) return;
    this.#awaited.delete(id);
    if (this.#hasContents) this.#context.emit({ kind: 'closePrefix', id });
    this.#context.emit({ kind: 'send', to: awaited.source, message: { kind: 'unwanted', id } });
  }
}
