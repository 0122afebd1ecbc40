// The numbered batches of an engine's KV events in order: finds gaps, has them replayed, and detects a restarted engine.
import type { EngineKvBatch, EngineKvEvent } from './engine-kv-event.ts';

/** Where the batches of an engine have been applied up to. */
export interface SequencePosition {
  /** The number of the next batch. */
  readonly next: number;
  /** The time of the batch before it. */
  readonly atS: number;
}

/** The blocks of an engine, as another gateway knows them. */
export interface EngineSnapshot extends SequencePosition {
  readonly events: readonly EngineKvEvent[];
}

export type SequenceEffect =
  | { readonly kind: 'apply'; readonly batch: EngineKvBatch }
  /** Batches are lost: the blocks of the engine are unknown from here on. */
  | { readonly kind: 'reset' }
  /** Request the batches from this number on; answer with `replayed` and `replayEnded`. */
  | { readonly kind: 'replay'; readonly from: number }
  /** Request the blocks of the engine from another gateway; answer with `snapshotEnded`. */
  | { readonly kind: 'requestSnapshot' }
  /** Its blocks are those of the engine before the next batch. */
  | { readonly kind: 'adopt'; readonly snapshot: EngineSnapshot };

/** Live batches kept while a replay is in progress, and all batches kept with those of the replay. */
const heldMax = { live: 10_000, all: 30_000 };

/**
 * Engines number batches from 0. A batch below the expected number is a duplicate, unless it is younger than all before
 * it: then the engine has started anew.
 */
export class EventSequence {
  readonly #canReplay: boolean;
  readonly #hasPeers: boolean;
  /** Undefined: the next batch may have any number. */
  #next: number | undefined = 0;
  #latestS = Number.NEGATIVE_INFINITY;
  /** Batches are held until it has ended. */
  #awaited: 'replay' | 'snapshot' | undefined;
  #held = new Map<number, EngineKvBatch>();
  #gaps = 0;
  #lost = 0;

  /** @param canReplay the engine keeps its latest batches @param hasPeers other gateways may know its blocks */
  constructor(canReplay: boolean, hasPeers = false) {
    this.#canReplay = canReplay;
    this.#hasPeers = hasPeers;
  }

  /** Gaps found, and those of them that a replay did not close. */
  get counts(): { readonly gaps: number; readonly lost: number } {
    return { gaps: this.#gaps, lost: this.#lost };
  }

  /** The number of the next batch; undefined: any. */
  get next(): number | undefined {
    return this.#next;
  }

  /** What all applied batches end with; undefined: batches are missing, or none has been applied. */
  get position(): SequencePosition | undefined {
    const hasAll = this.#awaited === undefined && this.#latestS > Number.NEGATIVE_INFINITY;
    return hasAll && this.#next !== undefined ? { next: this.#next, atS: this.#latestS } : undefined;
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
    this.#awaited = undefined;
    this.#held.clear();
  }

  received(number: number, batch: EngineKvBatch): readonly SequenceEffect[] {
    if (this.#awaited !== undefined) {
      if (this.#held.size < heldMax.live) this.#held.set(number, batch);
      return [];
    }
    // The batches before the first one are lost, and another gateway may have them.
    if (this.#next === undefined && this.#hasPeers) return this.#requestSnapshot(number, batch);
    const next = this.#next ?? number;
    if (number === next) return [this.#apply(number, batch)];
    if (number < next) return this.#passed(number, batch);
    this.#gaps++;
    if (this.#canReplay) {
      this.#held.set(number, batch);
      return this.#startReplay(next);
    }
    if (this.#hasPeers) return this.#requestSnapshot(number, batch);
    this.#lost++;
    return [{ kind: 'reset' }, this.#apply(number, batch)];
  }

  /** A batch of a replay. */
  replayed(number: number, batch: EngineKvBatch): void {
    if (this.#awaited === 'replay' && this.#held.size < heldMax.all) this.#held.set(number, batch);
  }

  /** All batches of the replay have arrived, or no more will. */
  replayEnded(): readonly SequenceEffect[] {
    if (this.#awaited !== 'replay') return [];
    if (this.#hasPeers && this.#lacksBatches()) {
      this.#awaited = 'snapshot';
      return [{ kind: 'requestSnapshot' }];
    }
    return this.#release();
  }

  /**
   * The blocks at this position may be taken: the batch before it is here too, with the same time. So a gateway that is
   * behind, or that has followed the engine before its restart, is passed over.
   */
  fits({ next, atS }: SequencePosition): boolean {
    return this.#awaited === 'snapshot' && this.#held.get(next - 1)?.atS === atS;
  }

  /** @param snapshot undefined: no gateway has one that fits */
  snapshotEnded(snapshot: EngineSnapshot | undefined): readonly SequenceEffect[] {
    if (this.#awaited !== 'snapshot') return [];
    if (snapshot === undefined || !this.fits(snapshot)) return this.#release();
    this.#next = snapshot.next;
    this.#latestS = snapshot.atS;
    return [{ kind: 'adopt', snapshot }, ...this.#release()];
  }

  /** Batches between the held ones, or before them, are lost. */
  #lacksBatches(): boolean {
    const numbers = [...this.#held.keys()].sort((a, b) => a - b);
    let next = this.#next ?? numbers[0];
    for (const number of numbers) {
      if (number > next) return true;
      if (number === next) next++;
    }
    return false;
  }

  #requestSnapshot(number: number, batch: EngineKvBatch): readonly SequenceEffect[] {
    this.#held.set(number, batch);
    this.#awaited = 'snapshot';
    return [{ kind: 'requestSnapshot' }];
  }

  /** Applies the held batches. */
  #release(): readonly SequenceEffect[] {
    this.#awaited = undefined;
    const held = [...this.#held].sort(([a], [b]) => a - b);
    this.#held = new Map();
    const effects: SequenceEffect[] = [];
    for (const [i, [number, batch]] of held.entries()) {
      const next = this.#next ?? number;
      if (number < next) {
        effects.push(...this.#passed(number, batch));
        if (this.#awaited === undefined) continue;
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
    this.#awaited = 'replay';
    return [{ kind: 'replay', from }];
  }
}
