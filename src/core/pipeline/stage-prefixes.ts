// Cached prefixes of pipelined prompts: each member gets the keys and values of its layers, from its own cache or from another instance.

import { digestWords } from '../../util/blake2s.ts';
import type { BlockCache } from '../kvcache/block-cache.ts';
import { localPages, localPrefix, touchPrefix } from '../kvcache/prefix-transfer.ts';
import { StagePages } from '../kvcache/stage-pages.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { Identified, InstanceContext } from '../scheduler/component.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';
import { type PipelineStage, rangeOf } from './pipeline-stage.ts';

interface PendingPrefix {
  readonly source: InstanceIndex;
  /** Blocks that this instance has cached. */
  readonly own: number;
  /** Blocks that have not arrived by then are computed. */
  readonly untilUs: number;
  readonly stage: Stage;
}

type Stage = PipelineStage<unknown, RunningRequest>;

/** Receives the prefix of a stage once it has arrived, or will not. */
interface PrefixTarget {
  prefixReady(stage: Stage, tokens: number): void;
}

/** Prefixes are received in the blocks that the stage has allocated for its layers. Cached blocks are copied there, so that no cached block is pinned. */
export class StagePrefixes {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #target: PrefixTarget;
  readonly #pending = new Map<RequestId, PendingPrefix>();

  constructor(context: InstanceContext<Identified, RunningRequest>, target: PrefixTarget) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#target = target;
  }

  get #hasContents(): boolean {
    return this.#context.config.contents !== undefined;
  }

  /** When the patience for a prefix ends. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#pending.size === 0) return nextUs;
    for (const { untilUs } of this.#pending.values()) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** Blocks are about to be allocated for the stage: its cached prefix is evicted last. */
  touch(stage: Stage): void {
    const { chain, blocks } = this.#prefixOf(stage);
    if (blocks > 0) touchPrefix(this.#cache, chain, blocks);
  }

  /** Obtains the prefix of a stage. `prefixReady` is called immediately, or when the rest has arrived or will not. */
  fetch(stage: Stage): void {
    const { running, group, index } = stage;
    const { chain, blocks } = this.#prefixOf(stage);
    const own = localPrefix(this.#cache, chain, blocks);
    if (this.#hasContents && own > 0) this.#copy(stage, chain, own);
    const { from: source, patienceUs = 0 } = group.prefix ?? {};
    if (own >= blocks || source === undefined || source === group.members[index]) {
      this.#target.prefixReady(stage, own * this.#cache.blockTokens);
      return;
    }
    const { id } = running;
    this.#pending.set(id, { source, own, untilUs: this.#context.nowUs + patienceUs, stage });
    if (this.#hasContents)
      this.#context.emit({ kind: 'expectPrefix', id, from: source, pages: this.#pagesOf(stage).pages(own, blocks) });
    this.#context.emit({
      kind: 'send',
      to: source,
      message: { kind: 'fetch', id, chain, from: own, range: rangeOf(stage) },
    });
  }

  #prefixOf({ running: { sequence }, group: { prefix } }: Stage): {
    readonly chain: BlockChain;
    readonly blocks: number;
  } {
    const { chain } = sequence;
    const blocks = Math.min(prefix?.blocks ?? 0, chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
    return { blocks, chain: { blocks, words: chain.words.slice(0, blocks * digestWords) } };
  }

  /** Models that pipelines compute have one layer group. */
  #pagesOf(stage: Stage): StagePages {
    return new StagePages(stage.running.sequence.table.groups[0], this.#cache.groups[0].pool, rangeOf(stage));
  }

  #copy(stage: Stage, chain: BlockChain, blocks: number): void {
    const pages = this.#pagesOf(stage);
    const from = pages.ofRange(localPages(this.#cache, chain, blocks));
    this.#context.emit({ kind: 'copyPrefix', from, to: pages.pages(0, blocks) });
  }

  /** The source has finished: blocks before `to` are here. False when no stage waits for it. */
  arrived(id: RequestId, source: InstanceIndex | 'ssd', to: number): boolean {
    const pending = this.#pending.get(id);
    if (pending?.source !== source) return false;
    this.#pending.delete(id);
    this.#target.prefixReady(pending.stage, Math.max(pending.own, to) * this.#cache.blockTokens);
    return true;
  }

  /** Stages whose patience has ended continue with their own blocks. */
  advance(nowUs: number): void {
    if (this.#pending.size === 0) return;
    for (const [id, { own, untilUs, stage }] of [...this.#pending]) {
      if (untilUs > nowUs) continue;
      this.cancel(id);
      this.#target.prefixReady(stage, own * this.#cache.blockTokens);
    }
  }

  /** The stage no longer needs its prefix. */
  cancel(id: RequestId): void {
    const pending = this.#pending.get(id);
    if (pending === undefined) return;
    this.#pending.delete(id);
    if (this.#hasContents) this.#context.emit({ kind: 'closePrefix', id });
    this.#context.emit({ kind: 'send', to: pending.source, message: { kind: 'cancelPrefix', id } });
  }
}
