// KV events from instances: keeps the prefix index of the conductor current, and requests snapshots when events are missing.

import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { InstanceReport } from '../protocol/instance-report.ts';
import type { KvEventBatch, KvSnapshot } from '../protocol/kv-events.ts';
import type { ConductorContext } from './conductor-context.ts';
import type { Placer } from './placement/placer.ts';

export class KvEventConsumer<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  readonly #placer: Placer<Request>;
  /** Instances with missing events, and the time of their first heartbeat that showed it. */
  readonly #behindSinceUs = new Map<InstanceIndex, number>();

  constructor(context: ConductorContext<Request>, placer: Placer<Request>) {
    this.#context = context;
    this.#placer = placer;
  }

  applyBatch(instance: InstanceIndex, batch: KvEventBatch): void {
    const context = this.#context;
    if (!context.instances.isUp(instance)) {
      context.countMessage('orphan', 'kvEvents');
      return;
    }
    const verdict = this.#placer.applyEvents(instance, batch);
    if (verdict === 'stale') context.countMessage('late', 'kvEvents');
    if (verdict !== 'gap') return;
    context.countMessage('lost', 'kvEvents');
    this.#requestSnapshot(instance);
  }

  applySnapshot(instance: InstanceIndex, snapshot: KvSnapshot): void {
    const context = this.#context;
    if (!context.instances.isUp(instance)) context.countMessage('orphan', 'snapshot');
    else if (!this.#placer.restore(instance, snapshot)) context.countMessage('late', 'snapshot');
  }

  /** Compares a heartbeat with the events received, and requests a snapshot when some are missing. */
  compare(instance: InstanceIndex, { incarnation, kvEventNumber }: InstanceReport): void {
    if (!this.#placer.isBehind(instance, incarnation, kvEventNumber)) {
      this.#behindSinceUs.delete(instance);
      return;
    }
    if (!this.#behindSinceUs.has(instance)) this.#behindSinceUs.set(instance, this.#context.nowUs);
    this.#requestSnapshot(instance);
  }

  #requestSnapshot(instance: InstanceIndex): void {
    this.#context.emit({ kind: 'requestSnapshot', instance });
  }

  instanceFailed(instance: InstanceIndex): void {
    this.#behindSinceUs.delete(instance);
  }

  /** Clears the index of each instance with events missing since before `sinceUs`: its entries may be long evicted. */
  forgetStale(sinceUs: number): void {
    const { instances } = this.#context;
    for (const [instance, behindUs] of this.#behindSinceUs) {
      if (behindUs >= sinceUs) continue;
      this.#context.countMessage('lost', 'snapshot');
      this.#behindSinceUs.delete(instance);
      this.#placer.instanceJoined(instance, instances.health.incarnationOf(instance));
    }
  }
}
