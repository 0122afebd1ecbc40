// The gManager of a process, on the gateway's thread: hears instances over the bus, and tells them who comes and goes.
import { GManager, type GManagerConfig } from '../../core/lending/manager/gmanager.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { GManagerEvent } from '../../core/protocol/lending-messages.ts';
import type { Bus } from '../bus/bus.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import { publishTo, subscribeTo } from '../threads/thread-bus.ts';
import type { InstanceDescription } from '../threads/thread-protocol.ts';
import { type ManagerOutput, returnMs } from './lender-routes.ts';

export type LendingManagerSettings = Pick<GManagerConfig, 'times' | 'blocksMin' | 'uniform'> & {
  /** (instances) */
  readonly instances: number;
};

/** Of a settlement what an instance can take in, and what it may lend; stores neither lend nor borrow. */
type Share = Pick<InstanceDescription, 'stagingBlocks' | 'lends'>;

export class LendingManagerHost {
  readonly #settings: LendingManagerSettings;
  readonly #bus: Bus;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'tick' }));
  /** (instances): blocks that each may lend. */
  #lendable: readonly number[];
  /** Of those that are gone: until then they may be back; */
  readonly #patience = new Map<InstanceIndex, NodeJS.Timeout>();
  /** then nobody counts on them. */
  readonly #forgotten = new Set<InstanceIndex>();
  #gmanager: GManager | undefined;

  constructor(settings: LendingManagerSettings, bus: Bus) {
    this.#settings = settings;
    this.#bus = bus;
    this.#lendable = new Array<number>(settings.instances).fill(0);
    subscribeTo(bus, 'manager', ['*'], (envelope) => this.#feed({ kind: 'message', envelope }));
  }

  /** All serve. @param shares (instances) */
  begin(shares: readonly Share[]): void {
    const { times, blocksMin, uniform } = this.#settings;
    this.#lendable = shares.map(({ lends }) => lends?.blocks ?? 0);
    const blocksMax = Math.min(...shares.flatMap(({ stagingBlocks }) => stagingBlocks ?? []));
    this.#gmanager = new GManager({ epoch: 1, times, blocksMin, blocksMax, uniform, distance: () => 1 });
    this.#feed({ kind: 'tick' });
  }

  /** What was said before `begin` is said again. */
  #feed(event: GManagerEvent): void {
    if (this.#gmanager === undefined) return;
    for (const effect of this.#gmanager.step(nowUs(), event)) {
      if (effect.kind !== 'send' || effect.envelope.to === 'gmanager') continue;
      this.#tell(effect.envelope.to, { kind: 'lending', envelope: effect.envelope });
    }
    this.#alarm.set(this.#gmanager.nextUs);
  }

  #tell(instance: InstanceIndex, wire: ManagerOutput): void {
    publishTo(this.#bus, 'managerOutput', [instance], wire);
  }

  /** An instance is gone with all that it had lent and borrowed. @param returns it will be started anew: others count on it for a while */
  onLost(instance: InstanceIndex, returns: boolean): void {
    for (const other of this.#lendable.keys())
      if (other !== instance) this.#tell(other, { kind: 'instanceLost', instance });
    if (!returns) this.#forget(instance);
    else if (!this.#patience.has(instance))
      this.#patience.set(instance, setTimeout(() => this.#forget(instance), returnMs).unref());
  }

  #forget(instance: InstanceIndex): void {
    this.#forgotten.add(instance);
    this.#tellReach();
  }

  /** It serves again. */
  onReturned(instance: InstanceIndex): void {
    clearTimeout(this.#patience.get(instance));
    this.#patience.delete(instance);
    this.#forgotten.delete(instance);
    this.#tellReach();
  }

  #tellReach(): void {
    for (const to of this.#lendable.keys()) {
      const others = this.#lendable.filter((_, other) => other !== to && !this.#forgotten.has(other));
      this.#tell(to, { kind: 'lenders', lendableBlocks: others.reduce((sum, own) => sum + own, 0) });
    }
  }

  close(): void {
    this.#gmanager = undefined;
    this.#alarm.set(Number.POSITIVE_INFINITY);
    for (const timer of this.#patience.values()) clearTimeout(timer);
  }
}
