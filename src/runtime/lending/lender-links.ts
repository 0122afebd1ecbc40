// Lending across processes for one instance: sessions with all other lenders, the election of the gManager, and the
// gManager itself if this process is the leader.
import { GManager, type GManagerConfig } from '../../core/lending/manager/gmanager.ts';
import type { LossReason } from '../../core/membership/liveness.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Envelope, GManagerEvent } from '../../core/protocol/lending-messages.ts';
import type { Bus } from '../bus/bus.ts';
import { LeaderElection } from '../processes/leader-election.ts';
import { type ClusterProcess, type Peer, type PeerHandler, PeerSession } from '../processes/peer-session.ts';
import type { RecordReconciler } from '../processes/record-reconciler.ts';
import { Alarm, carryOutStep, nowUs } from '../threads/alarm.ts';
import { ownAddress, publishTo, subscribeTo } from '../threads/thread-bus.ts';
import { encode } from '../wire/codec.ts';
import { type LenderAnnouncement, readLenderAnnouncement, readLendingWire } from '../wire/lending-messages.ts';
import { isRegistryLost, keepNumber, type LenderNumber, releaseNumber, takeNumber } from './lender-registry.ts';
import type { LendingWire } from './lending-wire.ts';
import { type ManagerOutput, returnMs } from './lending-wire.ts';
import { RoundTrips } from './round-trips.ts';

export interface LenderLinksOptions extends ClusterProcess {
  /** The bus of this process, which reaches the instance's thread. */
  readonly threads: Bus;
  /** Settings of the gManager, if it is elected here. */
  readonly manager: Pick<GManagerConfig, 'times' | 'blocksMin' | 'rangeBlocks' | 'uniform'>;
  /** Records may be incomplete after a loss. */
  readonly lost: boolean;
  /** Another instance has the same number. */
  onTaken(): void;
}

/** The announcement of a lender. */
export type Lender = Pick<LenderAnnouncement, 'identity' | 'lendableBlocks' | 'attentionAddress'>;
type LenderPeer = Peer<LenderAnnouncement>;

export class LenderLinks implements PeerHandler<LenderAnnouncement> {
  readonly #options: LenderLinksOptions;
  readonly #number: LenderNumber;
  readonly #election: LeaderElection;
  readonly #unsubscribe: readonly (() => void)[];
  readonly #lenders = new Map<InstanceIndex, LenderPeer>();
  /** Lenders that have failed recently and may return. */
  readonly #returning = new Map<InstanceIndex, { readonly timer: NodeJS.Timeout; readonly blocks: number }>();
  readonly #alarm = new Alarm(() => this.#stepManager({ kind: 'tick' }));
  readonly #reconciler: RecordReconciler;
  readonly #roundTrips = new RoundTrips((peer, us) => this.#forwardFrom(peer, { kind: 'roundTrip', us }));
  #session: PeerSession<LenderAnnouncement> | undefined;
  #own: Lender | undefined;
  #gmanager: GManager | undefined;
  readonly readAnnouncement = readLenderAnnouncement;

  private constructor(options: LenderLinksOptions, number: LenderNumber) {
    const { bus, name, incarnation, manager } = options;
    this.#options = options;
    this.#number = number;
    const { threads } = options;
    this.#unsubscribe = [
      subscribeTo(threads, 'lending', ['*', ownAddress], (wire, [to]) => this.#send(Number(to), wire)),
      subscribeTo(threads, 'manager', [ownAddress], (envelope) => this.#sendToManager(envelope)),
    ];
    this.#reconciler = keepNumber(
      bus,
      name,
      number,
      () => options.onTaken(),
      (line) => options.log(line),
    );
    this.#election = new LeaderElection({
      records: bus.records,
      key: 'gmanager',
      recordLost: options.lost,
      name: `${name}.${incarnation}`,
      onElected: (epoch) => {
        options.log(`This process is the gManager of epoch ${epoch}`);
        this.#gmanager = new GManager({ ...manager, epoch });
        this.#stepManager({ kind: 'tick' });
      },
      onDeposed: () => {
        options.log('This process is no longer the gManager');
        this.#gmanager = undefined;
        this.#alarm.set(Number.POSITIVE_INFINITY);
      },
    });
  }

  /** Takes a lender number. @throws Error in one line if all are taken */
  static async open(options: LenderLinksOptions): Promise<LenderLinks> {
    const { bus, name, incarnation } = options;
    const lost = options.lost || (await isRegistryLost(bus));
    const number = await takeNumber(bus, name, incarnation, lost);
    // Beside earlier lenders, a missing lease may be lost between this check and the first read.
    return new LenderLinks({ ...options, lost: lost || !number.isFirst }, number);
  }

  /** The lender number. */
  get instance(): InstanceIndex {
    return this.#number.instance;
  }

  /** Incarnation of the lender number. */
  get incarnation(): number {
    return this.#number.incarnation;
  }

  get isManager(): boolean {
    return this.#gmanager !== undefined && this.#election.isLeader;
  }

  /** Announces the lender. */
  start(own: Lender): void {
    const { bus, name, incarnation } = this.#options;
    this.#own = own;
    const process = { bus, name, incarnation, log: (line: string): void => this.#options.log(line) };
    this.#session = new PeerSession(process, 'lender', this);
    this.#session.start();
    this.#election.start();
  }

  announcement(): Lender & Pick<LenderAnnouncement, 'instance'> {
    if (this.#own === undefined) throw new Error('Cannot announce a lender: it has not started');
    return { instance: this.#number.instance, ...this.#own };
  }

  refuses({ identity }: LenderAnnouncement): string | undefined {
    const own = this.#own?.identity;
    return identity === own ? undefined : `it computes in another way: ${identity}, not ${own}`;
  }

  /** Frees the lender number. The bus stays open. */
  async close(): Promise<void> {
    this.#session?.close();
    this.#roundTrips.close();
    const kept = this.#reconciler.stop();
    for (const { timer } of this.#returning.values()) clearTimeout(timer);
    for (const stop of this.#unsubscribe) stop();
    const { bus, name } = this.#options;
    // If the server is down, other processes wait for the leases to expire.
    await Promise.allSettled([this.#election.resign(), kept.then(() => releaseNumber(bus, name, this.#number))]);
  }

  onJoined(peer: LenderPeer): void {
    const { instance, attentionAddress } = peer.member;
    clearTimeout(this.#returning.get(instance)?.timer);
    this.#returning.delete(instance);
    this.#lenders.set(instance, peer);
    this.#forwardFrom(instance, { kind: 'attentionAddress', address: attentionAddress });
    this.#roundTrips.add(instance, attentionAddress);
    this.#reportLendable();
  }

  onLost(peer: LenderPeer, why: LossReason): void {
    const { instance, lendableBlocks } = peer.member;
    if (this.#lenders.get(instance) !== peer) return;
    this.#lenders.delete(instance);
    this.#roundTrips.remove(instance);
    const hasEnded = why === 'left' || why === 'restarted';
    // A disconnected lender may still use borrowed blocks until its leases expire.
    this.#forward(hasEnded ? { kind: 'instanceFailed', instance } : { kind: 'creditorCut', creditor: instance });
    const giveUp = (): void => {
      this.#returning.delete(instance);
      this.#reportLendable();
    };
    const timer = setTimeout(giveUp, returnMs).unref();
    clearTimeout(this.#returning.get(instance)?.timer);
    this.#returning.set(instance, { timer, blocks: lendableBlocks });
  }

  #reportLendable(): void {
    let lendableBlocks = 0;
    for (const { member } of this.#lenders.values()) lendableBlocks += member.lendableBlocks;
    for (const { blocks } of this.#returning.values()) lendableBlocks += blocks;
    this.#forward({ kind: 'lenders', lendableBlocks });
  }

  /** To the thread. */
  #forward(event: ManagerOutput): void {
    publishTo(this.#options.threads, 'managerOutput', [ownAddress], event);
  }

  /** To the thread, as a message of that lender. */
  #forwardFrom(instance: InstanceIndex, wire: LendingWire): void {
    publishTo(this.#options.threads, 'lending', [ownAddress, instance], wire);
  }

  /** To the gManager, in whichever process it runs. Without one the message is dropped; its sender repeats it. */
  #sendToManager(envelope: Envelope): void {
    if (this.isManager) {
      this.#stepManager({ kind: 'message', envelope });
      return;
    }
    const { leader } = this.#election;
    for (const [instance, { member }] of this.#lenders)
      if (`${member.name}.${member.incarnation}` === leader) this.#send(instance, { kind: 'lending', envelope });
  }

  #send(to: InstanceIndex, wire: LendingWire): void {
    const peer = this.#lenders.get(to);
    if (peer !== undefined) this.#session?.send(peer, encode(wire));
  }

  onMessage(peer: LenderPeer, bytes: Uint8Array): void {
    const wire = readLendingWire(bytes);
    const { instance } = peer.member;
    if (this.#lenders.get(instance) !== peer) return;
    if (wire.kind !== 'lending') {
      this.#forwardFrom(instance, wire);
      return;
    }
    const { from, to } = wire.envelope;
    if (from !== 'gmanager' && from !== instance)
      throw new Error(`Cannot receive a message of ${from}: its sender is ${instance}`);
    if (to === 'gmanager') this.#stepManager({ kind: 'message', envelope: wire.envelope });
    else this.#forward(wire);
  }

  #stepManager(event: GManagerEvent): void {
    const gmanager = this.#gmanager;
    if (gmanager === undefined || !this.#election.isLeader) return;
    carryOutStep(
      () => gmanager.step(nowUs(), event),
      (effect) => {
        if (effect.kind !== 'send' || effect.envelope.to === 'gmanager') return;
        const wire = { kind: 'lending', envelope: effect.envelope } as const;
        if (effect.envelope.to === this.#number.instance) this.#forward(wire);
        else this.#send(effect.envelope.to, wire);
      },
      () => this.#alarm.set(gmanager.nextUs),
    );
  }
}
