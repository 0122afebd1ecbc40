// The gManager of a process, on the gateway's thread: hears instances over ports of their own, and tells them who comes and goes.
import { MessageChannel, type MessagePort } from 'node:worker_threads';
import { GManager, type GManagerConfig } from '../cluster/gmanager.ts';
import type { Envelope, GManagerEvent } from '../cluster/lending/messages.ts';
import type { InstanceIndex } from '../cluster/messages.ts';
import { Alarm, nowUs } from './alarm.ts';
import { type LenderWays, type NewLender, type OfficeWire, patienceMs } from './lender-ports.ts';
import { portsBetween } from './ports-between.ts';
import type { InstanceDescription } from './protocol.ts';

export type BureauSettings = Pick<GManagerConfig, 'times' | 'blocksMin' | 'uniform'> & {
  /** (instances) */
  readonly instances: number;
};

/** Of a settlement what an instance can take in, and what it may lend; stores neither lend nor borrow. */
type Share = Pick<InstanceDescription, 'stagingBlocks' | 'lends'>;

export class LendingBureau {
  readonly #settings: BureauSettings;
  readonly #ways: readonly LenderWays[];
  /** (instances): our ends. */
  readonly #ports: MessagePort[];
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'tick' }));
  /** (instances): blocks that each may lend. */
  #lendable: readonly number[] = [];
  /** Of those that are gone: until then they may be back; */
  readonly #patience = new Map<InstanceIndex, NodeJS.Timeout>();
  /** then nobody counts on them. */
  readonly #forgotten = new Set<InstanceIndex>();
  #gmanager: GManager | undefined;

  constructor(settings: BureauSettings) {
    this.#settings = settings;
    const channels = Array.from({ length: settings.instances }, () => new MessageChannel());
    this.#ports = channels.map(({ port1 }) => port1);
    const between = portsBetween(settings.instances);
    this.#ways = channels.map(({ port2 }, instance) => ({ instance, ports: between[instance] ?? [], office: port2 }));
    for (const port of this.#ports) this.#listen(port);
  }

  #listen(port: MessagePort): void {
    port.on('message', (envelope: Envelope) => this.#feed({ kind: 'message', envelope }));
    // What is only waited for must not keep the process alive.
    port.unref();
  }

  /** What an instance's first thread gets: its ports go there. */
  waysOf(instance: InstanceIndex): LenderWays {
    return this.#ways[instance];
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

  #tell(instance: InstanceIndex, wire: OfficeWire): void {
    this.#ports[instance]?.postMessage(wire);
  }

  /** An instance is gone with all that it had lent and borrowed. @param returns it will be started anew: others count on it for a while */
  lost(instance: InstanceIndex, returns: boolean): void {
    for (const other of this.#ports.keys())
      if (other !== instance) this.#tell(other, { kind: 'instanceLost', instance });
    if (!returns) this.#forget(instance);
    else if (!this.#patience.has(instance))
      this.#patience.set(instance, setTimeout(() => this.#forget(instance), patienceMs).unref());
  }

  #forget(instance: InstanceIndex): void {
    this.#forgotten.add(instance);
    this.#tellReach();
  }

  /** It is started anew: what its thread gets. @param running those that have a thread: they reach it over new ports */
  replaced(instance: InstanceIndex, running: ReadonlySet<InstanceIndex>): LenderWays {
    const ports = this.#ports.map((office, peer): MessagePort | undefined => {
      if (peer === instance || !running.has(peer)) return undefined;
      const { port1, port2 } = new MessageChannel();
      office.postMessage({ kind: 'newLender', instance, port: port1 } satisfies NewLender, [port1]);
      return port2;
    });
    const { port1, port2 } = new MessageChannel();
    this.#ports[instance]?.close();
    this.#ports[instance] = port1;
    this.#listen(port1);
    return { instance, ports, office: port2 };
  }

  /** It serves again. */
  returned(instance: InstanceIndex): void {
    clearTimeout(this.#patience.get(instance));
    this.#patience.delete(instance);
    this.#forgotten.delete(instance);
    this.#tellReach();
  }

  #tellReach(): void {
    for (const to of this.#ports.keys()) {
      const others = this.#lendable.filter((_, other) => other !== to && !this.#forgotten.has(other));
      this.#tell(to, { kind: 'lenders', lendableBlocks: others.reduce((sum, own) => sum + own, 0) });
    }
  }

  close(): void {
    this.#gmanager = undefined;
    this.#alarm.set(Number.POSITIVE_INFINITY);
    for (const timer of this.#patience.values()) clearTimeout(timer);
    for (const port of this.#ports) port.close();
  }
}
