// What instances tell the conductor of their caches: news of who is there, and what is missing is asked for.

import type { ConductorEffect } from '../protocol/effects.ts';
import type { InstanceIndex } from '../protocol/ids.ts';
import type { InstanceReport } from '../protocol/instance-report.ts';
import type { KvEventBatch, KvSnapshot } from '../protocol/kv-events.ts';
import type { MessageCounts } from '../protocol/message-counts.ts';
import type { InstanceHealth } from './failure-recovery/instance-health.ts';
import type { Placer } from './placement/placer.ts';

export class KvEventConsumer<Request> {
  readonly #placer: Placer<Request>;
  readonly #watch: InstanceHealth;
  readonly #fates: MessageCounts | undefined;
  readonly #push: (effect: ConductorEffect<Request>) => void;
  /** Since when it is known of whom that something is missing. */
  readonly #behindSinceUs = new Map<InstanceIndex, number>();

  constructor(
    placer: Placer<Request>,
    watch: InstanceHealth,
    fates: MessageCounts | undefined,
    push: (effect: ConductorEffect<Request>) => void,
  ) {
    this.#placer = placer;
    this.#watch = watch;
    this.#fates = fates;
    this.#push = push;
  }

  names(instance: InstanceIndex, words: Uint32Array, at: number): boolean {
    return this.#placer.names(instance, words, at);
  }

  journal(instance: InstanceIndex, journal: KvEventBatch): void {
    if (!this.#watch.isUp(instance)) {
      this.#fates?.met('orphan', 'journal');
      return;
    }
    const verdict = this.#placer.journal(instance, journal);
    if (verdict === 'stale') this.#fates?.met('late', 'journal');
    if (verdict !== 'gap') return;
    this.#fates?.met('lost', 'journal');
    this.#push({ kind: 'askBlocks', instance });
  }

  snapshot(instance: InstanceIndex, snapshot: KvSnapshot): void {
    if (!this.#watch.isUp(instance)) this.#fates?.met('orphan', 'snapshot');
    else if (!this.#placer.snapshot(instance, snapshot)) this.#fates?.met('late', 'snapshot');
  }

  /** Asks for what is missing of its journals. */
  catchUp(nowUs: number, instance: InstanceIndex, { incarnation, journal }: InstanceReport): void {
    if (!this.#placer.isBehind(instance, incarnation, journal)) {
      this.#behindSinceUs.delete(instance);
      return;
    }
    if (!this.#behindSinceUs.has(instance)) this.#behindSinceUs.set(instance, nowUs);
    this.#push({ kind: 'askBlocks', instance });
  }

  lost(instance: InstanceIndex): void {
    this.#behindSinceUs.delete(instance);
  }

  /** Of whom something has been missing since before `sinceUs`, nothing is known any more: better than what may long be gone. */
  forget(sinceUs: number): void {
    for (const [instance, behindUs] of this.#behindSinceUs) {
      if (behindUs >= sinceUs) continue;
      this.#fates?.met('lost', 'snapshot');
      this.#behindSinceUs.delete(instance);
      this.#placer.joined(instance, this.#watch.incarnationOf(instance));
    }
  }
}
