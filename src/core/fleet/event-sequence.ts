// The numbered batches of an engine's KV events in order: finds gaps, has them replayed, and detects a restarted engine.
import type { EngineKvBatch } from './engine-kv-event.ts';

export type SequenceEffect =
  | { readonly kind: 'apply'; readonly batch: EngineKvBatch }
  /** Batches are lost: the blocks of the engine are unknown from here on. */
  | { readonly kind: 'reset' }
  /** Request the batches from this number on; answer with `replayed` and `replayEnded`. */
  | { readonly kind: 'replay'; readonly from: number };

/** Live batches kept while a replay is in progress, and all batches kept with those of the replay. */
const heldMax = { live: 10_000, all: 30_000 };

/**
 * Engines number batches from 0. A batch below the expected number is a duplicate, unless it is younger than all before
 * it: then the engine has started anew.
 */
export class EventSequence {
  readonly #canReplay: boolean;
  /** Undefined: the next batch may have any number. */
  #next: number | undefined = 0;
  #latestS = Number.NEGATIVE_INFINITY;
  #isReplaying = false;
  #held = new Map<number, EngineKvBatch>();
  #gaps = 0;
  #lost = 0;

  /** @param canReplay the engine keeps its latest batches */
  constructor(canReplay: boolean) {
    this.#canReplay = canReplay;
  }

  /** Gaps found, and those of them that a replay did not close. */
  get counts(): { readonly gaps: number; readonly lost: number } {
    return { gaps: this.#gaps, lost: this.#lost };
  }

  /** The number of the next batch; undefined: any. */
  get next(): number | undefined {
    return this.#next;
  }

  /** The connection is established, for the first time or again: batches may have passed. */
  connected(): readonly SequenceEffect[] {
    if (this.#canReplay) return this.#startReplay(this.#next ?? 0);
    // Without a replay a batch that was missed shows in the next number.
    if (this.#next === 0) this.#next = undefined;
    return [];
  }

  /** The engine has started anew: its numbers begin at 0. */
  restarted(): void {
    this.#next = 0;
    this.#latestS = Number.NEGATIVE_INFINITY;
    this.#isReplaying = false;
    this.#held.clear();
  }

  received(number: number, batch: EngineKvBatch): readonly SequenceEffect[] {
    if (this.#isReplaying) {
      if (this.#held.size < heldMax.live) this.#held.set(number, batch);
      return [];
    }
    const next = this.#next ?? number;
    if (number === next) return [this.#apply(number, batch)];
    if (number < next) return this.#passed(number, batch);
    this.#gaps++;
    if (this.#canReplay) {
      this.#held.set(number, batch);
      return this.#startReplay(next);
    }
    this.#lost++;
    return [{ kind: 'reset' }, this.#apply(number, batch)];
  }

  /** A batch of a replay. */
  replayed(number: number, batch: EngineKvBatch): void {
    if (this.#isReplaying && this.#held.size < heldMax.all) this.#held.set(number, batch);
  }

  /** All batches of the replay have arrived, or no more will. */
  replayEnded(): readonly SequenceEffect[] {
    if (!this.#isReplaying) return [];
    this.#isReplaying = false;
    const held = [...this.#held].sort(([a], [b]) => a - b);
    this.#held = new Map();
    const effects: SequenceEffect[] = [];
    for (const [i, [number, batch]] of held.entries()) {
      const next = this.#next ?? number;
      if (number < next) {
        effects.push(...this.#passed(number, batch));
        if (!this.#isReplaying) continue;
        // The engine has started anew: its other batches wait for the replay of the first ones.
        for (const [later, other] of held.slice(i + 1)) if (other.atS >= batch.atS) this.#held.set(later, other);
        break;
      }
      if (number > next) {
        // The first batches of an engine that has run for long are gone, and none of its blocks is known yet.
        if (this.#latestS > Number.NEGATIVE_INFINITY) this.#lost++;
        effects.push({ kind: 'reset' });
      }
      effects.push(this.#apply(number, batch));
    }
    return effects;
  }

  #passed(number: number, batch: EngineKvBatch): readonly SequenceEffect[] {
    if (batch.atS <= this.#latestS) return [];
    this.restarted();
    if (number === 0) return [{ kind: 'reset' }, this.#apply(0, batch)];
    if (!this.#canReplay) return [{ kind: 'reset' }, this.#apply(number, batch)];
    this.#held.set(number, batch);
    return [{ kind: 'reset' }, ...this.#startReplay(0)];
  }

  #apply(number: number, batch: EngineKvBatch): SequenceEffect {
    this.#next = number + 1;
    this.#latestS = Math.max(this.#latestS, batch.atS);
    return { kind: 'apply', batch };
  }

  #startReplay(from: number): readonly SequenceEffect[] {
    this.#isReplaying = true;
    return [{ kind: 'replay', from }];
  }
}
