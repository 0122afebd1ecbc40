// An instance's side of lending across processes: links to all others that lend, the gManager's office if it is held here, and what the thread says and hears of both.
import { GManager, type GManagerConfig } from '../../core/lending/manager/gmanager.ts';
import type { Departure } from '../../core/membership/liveness.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Envelope, GManagerEvent } from '../../core/protocol/lending-messages.ts';
import type { Bus } from '../bus/bus.ts';
import { Office } from '../processes/office.ts';
import { type Peer, PeerSession } from '../processes/peer-session.ts';
import type { Upholding } from '../processes/record-reconciler.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import { ownAddress, publishTo, subscribeTo } from '../threads/thread-bus.ts';
import { encode } from '../wire/codec.ts';
import { type LenderAnnouncement, readLenderAnnouncement, readLendingWire } from '../wire/lending-messages.ts';
import { isRegistryLost, keepNumber, type LenderNumber, releaseNumber, takeNumber } from './lender-registry.ts';
import { type ManagerOutput, returnMs } from './lender-routes.ts';
import type { LendingWire } from './lending-wire.ts';

export interface LenderLinksOptions {
  readonly bus: Bus;
  /** Of this process: the instance's thread is on it. */
  readonly threads: Bus;
  readonly name: string;
  readonly incarnation: number;
  /** Of the gManager, if it is here. */
  readonly manager: Pick<GManagerConfig, 'times' | 'blocksMin' | 'blocksMax' | 'uniform'>;
  /** Records may have been lost, and not be whole again. */
  readonly lost: boolean;
  /** Another instance has its number. */
  readonly onTaken: () => void;
  readonly log: (message: string) => void;
}

/** What others have to know of an instance that lends. */
export type Lender = Pick<LenderAnnouncement, 'identity' | 'lendableBlocks' | 'attentionAddress'>;
type Other = Peer<LenderAnnouncement>;

export class LenderLinks {
  readonly #options: LenderLinksOptions;
  readonly #place: LenderNumber;
  readonly #office: Office;
  readonly #deaf: readonly (() => void)[];
  readonly #others = new Map<InstanceIndex, Other>();
  /** Of those that have gone lately. */
  readonly #patience = new Map<InstanceIndex, { readonly timer: NodeJS.Timeout; readonly blocks: number }>();
  readonly #alarm = new Alarm(() => this.#manage({ kind: 'tick' }));
  readonly #upholding: Upholding;
  #station: PeerSession<LenderAnnouncement> | undefined;
  #gmanager: GManager | undefined;

  private constructor(options: LenderLinksOptions, place: LenderNumber) {
    const { bus, name, incarnation, manager } = options;
    this.#options = options;
    this.#place = place;
    const { threads } = options;
    this.#deaf = [
      subscribeTo(threads, 'lending', ['*', ownAddress], (wire, [to]) => this.#send(Number(to), wire)),
      subscribeTo(threads, 'manager', [ownAddress], (envelope) => this.#ask(envelope)),
    ];
    this.#upholding = keepNumber(bus, name, place, options.onTaken, options.log);
    this.#office = new Office({
      records: bus.records,
      key: 'gmanager',
      lost: options.lost,
      name: `${name}.${incarnation}`,
      elected: (epoch) => {
        options.log(`This process is gManager: epoch ${epoch}`);
        this.#gmanager = new GManager({ ...manager, epoch, distance: () => 1 });
        this.#manage({ kind: 'tick' });
      },
      deposed: () => {
        options.log('This process is gManager no more');
        this.#gmanager = undefined;
        this.#alarm.set(Number.POSITIVE_INFINITY);
      },
    });
  }

  /** Takes a number among those that lend. @throws Error in one line when there is none */
  static async open(options: LenderLinksOptions): Promise<LenderLinks> {
    const { bus, name, incarnation } = options;
    const lost = options.lost || (await isRegistryLost(bus));
    return new LenderLinks({ ...options, lost }, await takeNumber(bus, name, incarnation, lost));
  }

  /** Its number among those that lend. */
  get instance(): InstanceIndex {
    return this.#place.instance;
  }

  /** Which start of its number the instance is. */
  get incarnation(): number {
    return this.#place.incarnation;
  }

  get isManager(): boolean {
    return this.#gmanager !== undefined && this.#office.isHeld;
  }

  /** Others find it from now on. */
  start(own: Lender): void {
    const { bus, name, incarnation, log } = this.#options;
    this.#station = new PeerSession<LenderAnnouncement>({
      ...{ bus, name, incarnation, log },
      kind: 'lender',
      about: { instance: this.#place.instance, ...own },
      read: readLenderAnnouncement,
      refuses: ({ identity }) =>
        identity === own.identity ? undefined : `it computes in another way: ${identity}, not ${own.identity}`,
      onJoined: (peer) => this.#join(peer),
      onLost: (peer, why) => this.#lose(peer, why),
      onMessage: (peer, message) => this.#hearOther(peer, readLendingWire(message)),
    });
    this.#station.start();
    this.#office.start();
  }

  /** Its number is free again. The bus stays open. */
  async close(): Promise<void> {
    this.#station?.close();
    const kept = this.#upholding.stop();
    for (const { timer } of this.#patience.values()) clearTimeout(timer);
    for (const stop of this.#deaf) stop();
    const { bus, name } = this.#options;
    // Where the server is gone others wait for leases.
    await Promise.allSettled([this.#office.resign(), kept.then(() => releaseNumber(bus, name, this.#place))]);
  }

  #join(peer: Other): void {
    const { instance, attentionAddress: door } = peer.member;
    clearTimeout(this.#patience.get(instance)?.timer);
    this.#patience.delete(instance);
    this.#others.set(instance, peer);
    this.#tellOf(instance, { kind: 'door', address: door });
    this.#tellReach();
  }

  #lose(peer: Other, why: Departure): void {
    const { instance, lendableBlocks } = peer.member;
    if (this.#others.get(instance) !== peer) return;
    this.#others.delete(instance);
    const isDead = why === 'left' || why === 'restarted';
    // One that is silent may still use what it has borrowed: its leases end that.
    this.#tell(isDead ? { kind: 'instanceLost', instance } : { kind: 'creditorCut', creditor: instance });
    const forget = (): void => {
      this.#patience.delete(instance);
      this.#tellReach();
    };
    const timer = setTimeout(forget, returnMs).unref();
    clearTimeout(this.#patience.get(instance)?.timer);
    this.#patience.set(instance, { timer, blocks: lendableBlocks });
  }

  #tellReach(): void {
    let lendableBlocks = 0;
    for (const { member } of this.#others.values()) lendableBlocks += member.lendableBlocks;
    for (const { blocks } of this.#patience.values()) lendableBlocks += blocks;
    this.#tell({ kind: 'lenders', lendableBlocks });
  }

  /** To the thread. */
  #tell(news: ManagerOutput): void {
    publishTo(this.#options.threads, 'managerOutput', [ownAddress], news);
  }

  /** In another's name. */
  #tellOf(instance: InstanceIndex, wire: LendingWire): void {
    publishTo(this.#options.threads, 'lending', [ownAddress, instance], wire);
  }

  /** To the gManager, wherever it is. While nobody is, it will be said again. */
  #ask(envelope: Envelope): void {
    if (this.isManager) {
      this.#manage({ kind: 'message', envelope });
      return;
    }
    const { holder } = this.#office;
    for (const [instance, { member }] of this.#others)
      if (`${member.name}.${member.incarnation}` === holder) this.#send(instance, { kind: 'lending', envelope });
  }

  #send(to: InstanceIndex, wire: LendingWire): void {
    const peer = this.#others.get(to);
    if (peer !== undefined) this.#station?.send(peer, encode(wire));
  }

  #hearOther(peer: Other, wire: Exclude<LendingWire, { kind: 'room' | 'door' }>): void {
    const { instance } = peer.member;
    if (this.#others.get(instance) !== peer) return;
    if (wire.kind !== 'lending') {
      this.#tellOf(instance, wire);
      return;
    }
    const { from, to } = wire.envelope;
    if (from !== 'gmanager' && from !== instance) throw new Error(`Cannot hear ${from}: ${instance} speaks`);
    if (to === 'gmanager') this.#manage({ kind: 'message', envelope: wire.envelope });
    else this.#tell(wire);
  }

  #manage(event: GManagerEvent): void {
    const gmanager = this.#gmanager;
    if (gmanager === undefined || !this.#office.isHeld) return;
    for (const effect of gmanager.step(nowUs(), event)) {
      if (effect.kind !== 'send' || effect.envelope.to === 'gmanager') continue;
      const wire = { kind: 'lending', envelope: effect.envelope } as const;
      if (effect.envelope.to === this.#place.instance) this.#tell(wire);
      else this.#send(effect.envelope.to, wire);
    }
    this.#alarm.set(gmanager.nextUs);
  }
}
