// The conductor's prefix index against the caches themselves: how long it may name blocks that an instance has removed.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { BlockListener } from '../../core/kvcache/events/kv-event-log.ts';
import { changesMax } from '../../core/kvcache/events/kv-event-publisher.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { digestWords } from '../../util/blake2s.ts';
import type { EventQueue } from '../engine/event-queue.ts';

/** A block that an instance no longer holds. */
interface RemovedBlock {
  /** (4 words): its digest. */
  readonly words: Uint32Array;
  readonly sinceUs: number;
}

interface IndexView {
  /** True if the index has the block of the digest at `words[at..at+4]` for the instance. */
  indexHas(instance: InstanceIndex, words: Uint32Array, at: number): boolean;
}

export class IndexChecks {
  /** (instances): by digest, in the order of removal. */
  readonly #removed: readonly Map<string, RemovedBlock>[];
  /** (instances): blocks removed before the instance last published its events. */
  readonly #published: readonly RemovedBlock[][];
  readonly #dirty = new Set<InstanceIndex>();
  readonly #queue: EventQueue;
  readonly #lossy: boolean;

  /** @param lossy KV events may be late or lost: the index may name a removed block for a time; else only until its removal is published */
  constructor(instances: number, lossy: boolean, queue: EventQueue) {
    this.#removed = Array.from({ length: instances }, () => new Map<string, RemovedBlock>());
    this.#published = Array.from({ length: instances }, () => []);
    this.#lossy = lossy;
    this.#queue = queue;
  }

  /** Observes the blocks that the instance's cache stores and removes. */
  blockListener(instance: InstanceIndex): BlockListener {
    return {
      record: (words, at, stored) => {
        if (stored) this.#removed[instance].delete(keyOf(words, at));
        else this.#addRemoved(instance, words, at);
      },
    };
  }

  #addRemoved(instance: InstanceIndex, words: Uint32Array, at: number): void {
    const removed = this.#removed[instance];
    const key = keyOf(words, at);
    // Deleted first: the map stays ordered by time.
    removed.delete(key);
    removed.set(key, { words: words.slice(at, at + digestWords), sinceUs: this.#queue.nowUs });
    this.#dirty.add(instance);
  }

  /** The instance has failed with all its blocks. */
  reset(instance: InstanceIndex, { cached }: LengthInstance): void {
    const words = cached.indexedDigests();
    for (let at = 0; at < words.length; at += digestWords) this.#addRemoved(instance, words, at);
  }

  /** The instance publishes all pending events of its cache. */
  published(instance: InstanceIndex): void {
    if (this.#lossy) return;
    for (const block of this.#removed[instance].values()) this.#published[instance].push(block);
    this.#removed[instance].clear();
    this.#dirty.add(instance);
  }

  /** All published events have been received. @param mostUs for which the index may name a removed block where events are lost */
  check(index: IndexView, mostUs: number): void {
    if (this.#lossy) {
      for (const instance of this.#dirty) this.#checkAges(instance, index, mostUs);
      return;
    }
    for (const instance of this.#dirty) {
      for (const { words } of this.#published[instance])
        if (index.indexHas(instance, words, 0))
          throw staleEntry(instance, words, 0, 'though the instance has published its removal');
      this.#published[instance].length = 0;
      const { size } = this.#removed[instance];
      if (size >= changesMax)
        throw new Error(`Requests broken: instance ${instance} has removed ${size} blocks and published none`);
    }
    this.#dirty.clear();
  }

  #checkAges(instance: InstanceIndex, index: IndexView, mostUs: number): void {
    const removed = this.#removed[instance];
    const { nowUs } = this.#queue;
    for (const [key, { words, sinceUs }] of removed) {
      const ageUs = nowUs - sinceUs;
      if (ageUs <= mostUs) return;
      if (index.indexHas(instance, words, 0))
        throw staleEntry(instance, words, 0, `which was removed ${ageUs / 1e6} s ago: at most ${mostUs / 1e6} s`);
      removed.delete(key);
    }
    this.#dirty.delete(instance);
  }

  /** Throws when the index names a block of the prompt that the instance neither holds nor has just removed. */
  checkPrompt({ chain }: LengthRequest, index: IndexView, instances: readonly LengthInstance[]): void {
    for (const [instance, { cached }] of instances.entries()) {
      for (let at = 0; at < chain.blocks * digestWords; at += digestWords) {
        if (!index.indexHas(instance, chain.words, at) || cached.holds(chain.words, at)) continue;
        const key = keyOf(chain.words, at);
        const isPublished = this.#published[instance].some(({ words }) => keyOf(words, 0) === key);
        if (!isPublished && !this.#removed[instance].has(key))
          throw staleEntry(instance, chain.words, at, 'which it does not have and has not just removed');
      }
    }
  }
}

function keyOf(words: Uint32Array, at: number): string {
  return `${words[at]} ${words[at + 1]} ${words[at + 2]} ${words[at + 3]}`;
}

function staleEntry(instance: InstanceIndex, words: Uint32Array, at: number, reason: string): Error {
  return new Error(`Requests broken: the index names block ${keyOf(words, at)} at instance ${instance}, ${reason}`);
}
