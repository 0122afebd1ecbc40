// Runs the gManager of one process on the gateway's thread, and reports lenders that join or fail to the instances.
import { GManager, type GManagerConfig } from '../../core/lending/manager/gmanager.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { GManagerEvent } from '../../core/protocol/lending-messages.ts';
import type { Bus } from '../bus/bus.ts';
import { Alarm, carryOutStep, nowUs } from '../threads/alarm.ts';
import { publishTo, subscribeTo } from '../threads/thread-bus.ts';
import type { InstanceDescription } from '../threads/thread-protocol.ts';
import { type ManagerOutput, returnMs } from './lending-wire.ts';

export type LendingManagerSettings = Pick<GManagerConfig, 'times' | 'blocksMin' | 'rangeBlocks' | 'uniform'> & {
  /** (instances) */
  readonly instances: number;
};

/** The blocks that an instance may lend. Stores neither lend nor borrow. */
type Capacity = Pick<InstanceDescription, 'lends'>;

export class LendingManagerHost {
  readonly #settings: LendingManagerSettings;
  readonly #bus: Bus;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'tick' }));
  /** (instances): blocks that each may lend. */
  #lendable: readonly number[];
  /** Failed instances that may return, with the timers of their time limits. */
  readonly #returning = new Map<InstanceIndex, NodeJS.Timeout>();
  /** Failed instances that have not returned in time. */
  readonly #forgotten = new Set<InstanceIndex>();
  #gmanager: GManager | undefined;

  constructor(settings: LendingManagerSettings, bus: Bus) {
    this.#settings = settings;
    this.#bus = bus;
    this.#lendable = new Array<number>(settings.instances).fill(0);
    subscribeTo(bus, 'manager', ['*'], (envelope) => this.#feed({ kind: 'message', envelope }));
  }

  /** Starts the gManager once all instances serve. @param capacities (instances) */
  begin(capacities: readonly Capacity[]): void {
    const { times, blocksMin, rangeBlocks, uniform } = this.#settings;
    this.#lendable = capacities.map(({ lends }) => lends?.blocks ?? 0);
    this.#gmanager = new GManager({ epoch: 1, times, blocksMin, rangeBlocks, uniform });
    this.#feed({ kind: 'tick' });
  }

  /** Messages before `begin` are dropped; their senders repeat them. */
  #feed(event: GManagerEvent): void {
    const gmanager = this.#gmanager;
    if (gmanager === undefined) return;
    carryOutStep(
      () => gmanager.step(nowUs(), event),
      (effect) => {
        if (effect.kind !== 'send' || effect.envelope.to === 'gmanager') return;
        this.#send(effect.envelope.to, { kind: 'lending', envelope: effect.envelope });
      },
      () => this.#alarm.set(gmanager.nextUs),
    );
  }

  #send(instance: InstanceIndex, wire: ManagerOutput): void {
    publishTo(this.#bus, 'managerOutput', [instance], wire);
  }

  /**
   * An instance has failed, with all that it had lent and borrowed.
   * @param returns it restarts: its memory counts as lendable until then, for a limited time
   */
  onLost(instance: InstanceIndex, returns: boolean): void {
    for (const other of this.#lendable.keys())
      if (other !== instance) this.#send(other, { kind: 'instanceFailed', instance });
    if (!returns) this.#forget(instance);
    else if (!this.#returning.has(instance))
      this.#returning.set(instance, setTimeout(() => this.#forget(instance), returnMs).unref());
  }

  #forget(instance: InstanceIndex): void {
    this.#forgotten.add(instance);
    this.#reportLendable();
  }

  /** The instance serves again. */
  onReturned(instance: InstanceIndex): void {
    clearTimeout(this.#returning.get(instance));
    this.#returning.delete(instance);
    this.#forgotten.delete(instance);
    this.#reportLendable();
  }

  #reportLendable(): void {
    for (const to of this.#lendable.keys()) {
      const others = this.#lendable.filter((_, other) => other !== to && !this.#forgotten.has(other));
      this.#send(to, { kind: 'lenders', lendableBlocks: others.reduce((sum, own) => sum + own, 0) });
    }
  }

  close(): void {
    this.#gmanager = undefined;
    this.#alarm.set(Number.POSITIVE_INFINITY);
    for (const timer of this.#returning.values()) clearTimeout(timer);
  }
}
