// What a gateway lacks of what instances hold: carries out how it catches up, from their copies in the store.
import { type CatchUpEffect, type CatchUpEvent, SnapshotCatchUp } from '../../core/kvcache/events/snapshot-catch-up.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import type { KvEventBatch, KvSnapshot } from '../threads/thread-protocol.ts';

export interface CatchUpDriverOptions {
  /** To the instance. @param unread its copy could not be used */
  readonly ask: (instance: InstanceIndex, unread: boolean) => void;
  /** The copy of the instance that is there now, of that number or later. */
  readonly read: (instance: InstanceIndex, number: number) => Promise<KvSnapshot | undefined>;
  /** Of the instance's life, as it calls it itself. */
  readonly snapshot: (instance: InstanceIndex, snapshot: KvSnapshot) => void;
  readonly journal: (instance: InstanceIndex, journal: KvEventBatch) => void;
}

export class CatchUpDriver {
  readonly #options: CatchUpDriverOptions;
  readonly #machine = new SnapshotCatchUp();
  readonly #alarm = new Alarm(() => this.feed({ kind: 'wake' }));
  #closed = false;

  constructor(options: CatchUpDriverOptions) {
    this.#options = options;
  }

  feed(event: CatchUpEvent): void {
    if (this.#closed) return;
    for (const effect of this.#machine.step(nowUs(), event)) this.#carryOut(effect);
    this.#alarm.set(this.#machine.nextUs);
  }

  close(): void {
    this.#closed = true;
    this.#alarm.set(Number.POSITIVE_INFINITY);
  }

  #carryOut(effect: CatchUpEffect): void {
    const { instance } = effect;
    switch (effect.kind) {
      case 'ask':
        this.#options.ask(instance, effect.unread);
        break;
      case 'read':
        void this.#read(effect);
        break;
      case 'snapshot':
        this.#options.snapshot(instance, effect.snapshot);
        break;
      case 'journal':
        this.#options.journal(instance, effect.journal);
    }
  }

  async #read({ instance, ticket, number }: Extract<CatchUpEffect, { kind: 'read' }>): Promise<void> {
    const snapshot = await this.#options.read(instance, number).catch(() => undefined);
    this.feed({ kind: 'read', ticket, snapshot });
  }
}
