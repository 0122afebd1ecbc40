// How long the conductor's prefix index may name blocks that an instance has lost, against what its cache itself says.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { BlockListener } from '../../core/kvcache/events/kv-event-log.ts';
import { changesMax } from '../../core/kvcache/events/kv-event-publisher.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { digestWords } from '../../util/blake2s.ts';

/** A block that an instance does not hold any more. */
interface Lost {
  /** (4 words): its digest. */
  readonly words: Uint32Array;
  readonly sinceUs: number;
}

/** Is the instance taken to have the block of the digest at `words[at..at+4]`? */
type Names = (instance: InstanceIndex, words: Uint32Array, at: number) => boolean;

export class Staleness {
  /** (instances): by digest, in the order of the losses. */
  readonly #lost: readonly Map<string, Lost>[];
  /** (instances): lost before what was told last. */
  readonly #told: readonly Lost[][];
  readonly #dirty = new Set<InstanceIndex>();
  readonly #nowUs: () => number;
  readonly #astray: boolean;

  /** @param astray what is told may be late or lost: then losses are known after a time, and else as soon as they are told */
  constructor(instances: number, astray: boolean, nowUs: () => number) {
    this.#lost = Array.from({ length: instances }, () => new Map<string, Lost>());
    this.#told = Array.from({ length: instances }, () => []);
    this.#astray = astray;
    this.#nowUs = nowUs;
  }

  /** Hears what an instance's cache stores and drops. */
  witness(instance: InstanceIndex): BlockListener {
    return {
      record: (words, at, stored) => {
        if (stored) this.#lost[instance].delete(keyOf(words, at));
        else this.#lose(instance, words, at);
      },
    };
  }

  #lose(instance: InstanceIndex, words: Uint32Array, at: number): void {
    const lost = this.#lost[instance];
    const key = keyOf(words, at);
    // In its place by time, also where it was lost before.
    lost.delete(key);
    lost.set(key, { words: words.slice(at, at + digestWords), sinceUs: this.#nowUs() });
    this.#dirty.add(instance);
  }

  /** The instance is gone with all that it held. */
  gone(instance: InstanceIndex, { cached }: LengthInstance): void {
    const words = cached.indexedDigests();
    for (let at = 0; at < words.length; at += digestWords) this.#lose(instance, words, at);
  }

  /** The instance says all that it has not said yet of its cache. */
  tells(instance: InstanceIndex): void {
    if (this.#astray) return;
    for (const lost of this.#lost[instance].values()) this.#told[instance].push(lost);
    this.#lost[instance].clear();
    this.#dirty.add(instance);
  }

  /** What was told has been heard. @param mostUs that a loss may be unknown where news go astray */
  check(names: Names, mostUs: number): void {
    if (this.#astray) {
      for (const instance of this.#dirty) this.#checkAges(instance, names, mostUs);
      return;
    }
    for (const instance of this.#dirty) {
      for (const { words } of this.#told[instance])
        if (names(instance, words, 0)) throw stale(instance, words, 0, 'though the instance has told of its loss');
      this.#told[instance].length = 0;
      const { size } = this.#lost[instance];
      if (size >= changesMax)
        throw new Error(`Requests broken: instance ${instance} has lost ${size} blocks and told of none`);
    }
    this.#dirty.clear();
  }

  #checkAges(instance: InstanceIndex, names: Names, mostUs: number): void {
    const lost = this.#lost[instance];
    const nowUs = this.#nowUs();
    for (const [key, { words, sinceUs }] of lost) {
      if (nowUs - sinceUs <= mostUs) return;
      if (names(instance, words, 0))
        throw stale(
          instance,
          words,
          0,
          `which it has not had for ${(nowUs - sinceUs) / 1e6} s: at most ${mostUs / 1e6} s`,
        );
      lost.delete(key);
    }
    this.#dirty.delete(instance);
  }

  /** Of a prompt the index names nothing that was never there, or not for long. */
  checkChain({ chain }: LengthRequest, names: Names, instances: readonly LengthInstance[]): void {
    for (const [instance, { cached }] of instances.entries()) {
      for (let at = 0; at < chain.blocks * digestWords; at += digestWords) {
        if (!names(instance, chain.words, at) || cached.holds(chain.words, at)) continue;
        const key = keyOf(chain.words, at);
        const isTold = this.#told[instance].some(({ words }) => keyOf(words, 0) === key);
        if (!isTold && !this.#lost[instance].has(key))
          throw stale(instance, chain.words, at, 'which it does not have and has not just lost');
      }
    }
  }
}

function keyOf(words: Uint32Array, at: number): string {
  return `${words[at]} ${words[at + 1]} ${words[at + 2]} ${words[at + 3]}`;
}

function stale(instance: InstanceIndex, words: Uint32Array, at: number, why: string): Error {
  return new Error(`Requests broken: the index names block ${keyOf(words, at)} at instance ${instance}, ${why}`);
}
