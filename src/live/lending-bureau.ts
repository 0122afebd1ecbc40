// The gManager of a process, on the gateway's thread: hears instances over ports of their own, and tells them when one of them is gone.
import { MessageChannel, type MessagePort } from 'node:worker_threads';
import { GManager, type GManagerConfig } from '../cluster/gmanager.ts';
import type { Envelope, GManagerEvent } from '../cluster/lending/messages.ts';
import type { InstanceIndex } from '../cluster/messages.ts';
import { Alarm, nowUs } from './alarm.ts';
import type { LenderWays, OfficeWire } from './lender-ports.ts';
import { portsBetween } from './ports-between.ts';

export type BureauSettings = Pick<GManagerConfig, 'times' | 'blocksMin' | 'uniform'> & {
  /** (instances) */
  readonly instances: number;
};

export class LendingBureau {
  readonly #settings: BureauSettings;
  readonly #ways: readonly LenderWays[];
  /** (instances): our ends. */
  readonly #ports: readonly MessagePort[];
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'tick' }));
  #gmanager: GManager | undefined;

  constructor(settings: BureauSettings) {
    this.#settings = settings;
    const channels = Array.from({ length: settings.instances }, () => new MessageChannel());
    this.#ports = channels.map(({ port1 }) => port1);
    const between = portsBetween(settings.instances);
    this.#ways = channels.map(({ port2 }, instance) => ({ instance, ports: between[instance] ?? [], office: port2 }));
    for (const port of this.#ports) {
      port.on('message', (envelope: Envelope) => this.#feed({ kind: 'message', envelope }));
      // What is only waited for must not keep the process alive.
      port.unref();
    }
  }

  /** What an instance's thread gets: its ports go there. */
  waysOf(instance: InstanceIndex): LenderWays {
    return this.#ways[instance];
  }

  /** All serve. @param blocksMax that every one of them can stage */
  begin(blocksMax: number): void {
    const { times, blocksMin, uniform } = this.#settings;
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

  /** An instance is gone. */
  lost(instance: InstanceIndex): void {
    for (const other of this.#ports.keys())
      if (other !== instance) this.#tell(other, { kind: 'instanceLost', instance });
  }

  close(): void {
    this.#gmanager = undefined;
    this.#alarm.set(Number.POSITIVE_INFINITY);
    for (const port of this.#ports) port.close();
  }
}
