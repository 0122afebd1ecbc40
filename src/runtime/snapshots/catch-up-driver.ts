// Brings a gateway up to date with the caches of instances, from their stored snapshots: carries out the effects of SnapshotCatchUp.
import { type CatchUpEffect, type CatchUpEvent, SnapshotCatchUp } from '../../core/kvcache/events/snapshot-catch-up.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { KvEventBatch, KvSnapshot } from '../../core/protocol/kv-events.ts';
import { assertNever } from '../../util/assert-never.ts';
import { Alarm, carryOutStep, nowUs } from '../threads/alarm.ts';

/** The owner of a CatchUpDriver. */
export interface CatchUpHost {
  /** Sends the request to the instance. @param unreadable its stored snapshot was of no use */
  requestSnapshot(instance: InstanceIndex, unreadable: boolean): void;
  /** The stored snapshot of that number or a later one. */
  readSnapshot(instance: InstanceIndex, number: number): Promise<KvSnapshot | undefined>;
  /** The incarnation in the snapshot is the instance's own count. */
  onSnapshot(instance: InstanceIndex, snapshot: KvSnapshot): void;
  onKvEvents(instance: InstanceIndex, batch: KvEventBatch): void;
}

export class CatchUpDriver {
  readonly #host: CatchUpHost;
  readonly #machine = new SnapshotCatchUp();
  readonly #alarm = new Alarm(() => this.feed({ kind: 'wake' }));
  #closed = false;

  constructor(host: CatchUpHost) {
    this.#host = host;
  }

  feed(event: CatchUpEvent): void {
    if (this.#closed) return;
    carryOutStep(
      () => this.#machine.step(nowUs(), event),
      (effect) => this.#carryOut(effect),
      () => this.#alarm.set(this.#machine.nextUs),
    );
  }

  close(): void {
    this.#closed = true;
    this.#alarm.set(Number.POSITIVE_INFINITY);
  }

  #carryOut(effect: CatchUpEffect): void {
    const { instance } = effect;
    switch (effect.kind) {
      case 'requestSnapshot':
        this.#host.requestSnapshot(instance, effect.unreadable);
        break;
      case 'read':
        void this.#read(effect);
        break;
      case 'snapshot':
        this.#host.onSnapshot(instance, effect.snapshot);
        break;
      case 'kvEvents':
        this.#host.onKvEvents(instance, effect.batch);
        break;
      default:
        assertNever(effect);
    }
  }

  async #read({ instance, readNumber, number }: Extract<CatchUpEffect, { kind: 'read' }>): Promise<void> {
    const snapshot = await this.#host.readSnapshot(instance, number).catch(() => undefined);
    this.feed({ kind: 'read', readNumber, snapshot });
  }
}
