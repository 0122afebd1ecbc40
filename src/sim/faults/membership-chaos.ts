// Chaos runs of what processes of a cluster agree on: several gateways and instances find each other, keep sessions over a faulty network, and elect a leader.
import { type Announcement, Membership, type MembershipEvent } from '../../core/membership/liveness.ts';
import { type ChannelEvent, ReliableChannel } from '../../core/membership/reliable-channel.ts';
import { Prng } from '../../util/prng.ts';
import { EventQueue } from '../engine/event-queue.ts';
import type { ChaosCounts, ChaosKind } from './chaos-counts.ts';
import { countFault, type Fault, type FaultCounts, fault } from './fault-plan.ts';
import { FaultyNetwork } from './faulty-network.ts';
import { LeaseStore, SimulatedCandidate } from './simulated-election.ts';

/** Duration of the faults. */
const chaosUs = 12_000_000;
/** After them, until all processes agree again. */
const restUs = 12_000_000;
const heartbeatUs = 500_000;
const silentUs = 3_500_000;
/** Mean time between two messages of a process. */
const messageUs = 150_000;
/** Least time between two losses of the store. */
const lossesUs = 5_000_000;
/** Least time from the first record of an epoch to its loss: several polls. */
const recordReadUs = 2_000_000;
/** Small parts, so that most messages have several. */
const channelConfig = { partBytesMax: 24, messageBytesMax: 2 ** 20, keptBytesMax: 2 ** 20 };
/** Random streams of the seed. */
const streams = { world: 21, network: 22, traffic: 23, faults: 24, store: 25 };

export type MembershipTotal = 'processes' | 'sessions' | 'delivered' | 'lostMembers' | 'brokenSessions' | 'elected';

interface Session {
  readonly member: Announcement;
  readonly number: number;
  readonly channel: ReliableChannel;
  sent: number;
  delivered: number;
}

type Frame =
  | ({ readonly session: number } & Exclude<ChannelEvent, { kind: 'send' }>)
  | { readonly kind: 'ended'; readonly session: number };

/** One process. It keeps sessions as `PeerSession` does: gateways lead, and number them. */
class SimulatedProcess {
  readonly index: number;
  readonly isGateway: boolean;
  readonly name: string;
  incarnation = 0;
  isUp = false;
  /** Of the running incarnation. */
  candidate: SimulatedCandidate | undefined;
  readonly sessions = new Map<string, Session>();
  membership = new Membership<Announcement>({ timeoutUs: silentUs });
  readonly #world: MembershipWorld;
  readonly #lastSessions = new Map<string, { readonly incarnation: number; readonly number: number }>();
  readonly #members = new Map<string, Announcement>();
  #announcements = 0;
  #isSuspended = false;
  /** What arrived during a suspension. */
  #backlog: (() => void)[] = [];

  constructor(world: MembershipWorld, index: number, isGateway: boolean) {
    this.#world = world;
    this.index = index;
    this.isGateway = isGateway;
    this.name = `${isGateway ? 'gateway' : 'instance'}-${index}`;
  }

  start(): void {
    if (this.isUp) return;
    this.isUp = true;
    this.incarnation++;
    this.#announcements = 0;
    this.#isSuspended = false;
    this.membership = new Membership<Announcement>({ timeoutUs: silentUs });
    this.candidate = new SimulatedCandidate(`${this.name}.${this.incarnation}`, this.#world.store, this.#world.queue);
    this.#beat(this.incarnation);
    this.#talk(this.incarnation);
  }

  crash(): boolean {
    if (!this.isUp) return false;
    this.isUp = false;
    this.candidate?.stop();
    this.sessions.clear();
    this.#members.clear();
    this.#lastSessions.clear();
    this.#backlog = [];
    return true;
  }

  suspend(forUs: number): boolean {
    if (!this.isUp || this.#isSuspended) return false;
    this.#isSuspended = true;
    this.candidate?.suspend();
    const { incarnation } = this;
    this.#world.queue.after(forUs, () => {
      if (!this.isUp || incarnation !== this.incarnation) return;
      this.#isSuspended = false;
      // Messages that arrived meanwhile precede the alarms.
      for (const handle of this.#backlog.splice(0)) handle();
      this.candidate?.resume();
      this.#feed({ kind: 'wake' });
    });
    return true;
  }

  /** Runs `handle` now, or after the suspension; never in a later incarnation. */
  receive(handle: () => void): void {
    const { incarnation } = this;
    const whenUp = (): void => {
      if (this.isUp && incarnation === this.incarnation) handle();
    };
    if (this.#isSuspended) this.#backlog.push(whenUp);
    else whenUp();
  }

  onAnnouncement(announcement: Announcement): void {
    this.#feed({ kind: 'announced', announcement });
  }

  onFrame(from: string, incarnation: number, frame: Frame): void {
    const member = this.#members.get(from);
    if (member?.incarnation !== incarnation) return;
    const session = this.#sessionOf(member, frame);
    if (session === undefined) return;
    if (frame.kind === 'ended') this.#reset(session);
    else this.#step(session, frame);
  }

  /** This process counts it as alive. */
  countsAsAlive({ name, incarnation }: SimulatedProcess): boolean {
    return this.membership.has(name, incarnation);
  }

  #beat(incarnation: number): void {
    if (!this.isUp || incarnation !== this.incarnation) return;
    this.#world.queue.after(heartbeatUs, () => this.#beat(incarnation));
    if (this.#isSuspended) return;
    if (this.membership.nextUs <= this.#world.queue.nowUs) this.#feed({ kind: 'wake' });
    this.#announce();
    for (const session of this.sessions.values()) this.#ack(session);
  }

  /** Sends messages at random times to random peers. */
  #talk(incarnation: number): void {
    const { traffic, queue } = this.#world;
    queue.after(traffic.exponentialUs(messageUs), () => {
      if (!this.isUp || incarnation !== this.incarnation || this.#world.isOver) return;
      const open = [...this.sessions.values()];
      if (open.length > 0 && !this.#isSuspended) this.#send(open[traffic.integer(0, open.length - 1)]);
      this.#talk(incarnation);
    });
  }

  #send(session: Session): void {
    const text = `${this.name} ${this.incarnation} ${session.number} ${++session.sent} ${'.'.repeat(this.#world.traffic.integer(0, 60))}`;
    this.#step(session, { kind: 'send', message: Uint8Array.from(text, (character) => character.charCodeAt(0)) });
  }

  #announce(): void {
    const { name, incarnation } = this;
    const announcement = { name, incarnation, number: ++this.#announcements };
    for (const peer of this.#world.processes)
      if (peer.isGateway !== this.isGateway) this.#world.send(this, peer, () => peer.onAnnouncement(announcement));
  }

  #ack({ member, number, channel }: Session): void {
    this.#publish(member, { kind: 'ack', session: number, ...channel.ack });
  }

  #publish({ name, incarnation: to }: Announcement, frame: Frame): void {
    const peer = this.#world.processes.find((each) => each.name === name);
    const { incarnation } = this;
    if (peer === undefined) return;
    this.#world.send(this, peer, () => {
      if (peer.incarnation === to) peer.onFrame(this.name, incarnation, frame);
    });
  }

  #feed(event: MembershipEvent<Announcement>): void {
    for (const effect of this.membership.step(this.#world.queue.nowUs, event)) {
      if (effect.kind === 'joined') this.#join(effect.member);
      else if (effect.kind === 'lost') {
        this.#world.counts.lostMembers++;
        this.#members.delete(effect.name);
        this.sessions.delete(effect.name);
      }
    }
  }

  #join(member: Announcement): void {
    this.#members.set(member.name, member);
    this.#announce();
    if (this.isGateway) this.#ack(this.#begin(member, this.#lastNumber(member) + 1));
  }

  #lastNumber({ name, incarnation }: Announcement): number {
    const last = this.#lastSessions.get(name);
    return last?.incarnation === incarnation ? last.number : 0;
  }

  #begin(member: Announcement, number: number): Session {
    const session = { member, number, channel: new ReliableChannel(channelConfig), sent: 0, delivered: 0 };
    this.#lastSessions.set(member.name, { incarnation: member.incarnation, number });
    this.sessions.set(member.name, session);
    this.#world.counts.sessions++;
    return session;
  }

  #sessionOf(member: Announcement, { session: number, kind }: Frame): Session | undefined {
    const current = this.sessions.get(member.name);
    if (current?.number === number) return current;
    if (this.isGateway) return undefined;
    if (number > this.#lastNumber(member)) return this.#begin(member, number);
    if (current === undefined && kind === 'ack') this.#publish(member, { kind: 'ended', session: number });
    return undefined;
  }

  #step(session: Session, event: ChannelEvent): void {
    for (const effect of session.channel.step(event)) {
      if (this.sessions.get(session.member.name) !== session) return;
      if (effect.kind === 'publish')
        this.#publish(session.member, { kind: 'part', session: session.number, part: effect.part });
      else if (effect.kind === 'nack')
        this.#publish(session.member, { kind: 'nack', session: session.number, from: effect.from });
      else if (effect.kind === 'broken') this.#reset(session);
      else this.#deliver(session, String.fromCharCode(...effect.message));
    }
  }

  /** Each message of a session arrives once and in order. */
  #deliver(session: Session, text: string): void {
    const { member, number } = session;
    const expected = `${member.name} ${member.incarnation} ${number} ${++session.delivered}`;
    if (!text.startsWith(`${expected} `))
      throw new Error(`Sessions broken: ${this.name} received '${text}', not '${expected}'`);
    this.#world.counts.delivered++;
  }

  #reset(session: Session): void {
    const { name, incarnation } = session.member;
    this.#world.counts.brokenSessions++;
    if (this.isGateway) this.#feed({ kind: 'broken', name, incarnation });
    else {
      this.#publish(session.member, { kind: 'ended', session: session.number });
      this.sessions.delete(name);
    }
  }
}

/** The processes, the network between them and the store of their lease. */
class MembershipWorld {
  readonly queue = new EventQueue();
  readonly injected: FaultCounts = new Map();
  readonly traffic: Prng;
  readonly network: FaultyNetwork;
  readonly store: LeaseStore;
  readonly processes: readonly SimulatedProcess[];
  readonly counts = { sessions: 0, delivered: 0, lostMembers: 0, brokenSessions: 0 };
  isOver = false;
  readonly #latencyUs: number;
  readonly #prng: Prng;
  #epoch = 0;
  #lostUs = Number.NEGATIVE_INFINITY;

  constructor(seed: number) {
    const prng = new Prng(seed, streams.world);
    this.traffic = new Prng(seed, streams.traffic);
    this.#prng = new Prng(seed, streams.faults);
    this.#latencyUs = prng.integer(100, 20_000);
    const ofMessages: readonly Fault[] = [
      fault('loss', { ratio: 0.05 }),
      fault('duplication', { ratio: 0.05 }),
      fault('delay', { ratio: 0.1, byUs: 200_000 }),
    ].filter(() => prng.chance(0.7));
    this.network = new FaultyNetwork(new Prng(seed, streams.network), ofMessages, this.queue, this.injected);
    this.store = new LeaseStore(this.queue, new Prng(seed, streams.store));
    const gateways = prng.integer(2, 3);
    const size = gateways + prng.integer(2, 4);
    this.processes = Array.from({ length: size }, (_, i) => new SimulatedProcess(this, i, i < gateways));
    for (const each of this.processes) this.queue.at(prng.integer(0, 2_000_000), () => each.start());
    this.#injectLater();
  }

  send(from: SimulatedProcess, to: SimulatedProcess, handle: () => void): void {
    this.network.send(from.index, to.index, this.#latencyUs, () => to.receive(handle));
  }

  /** @throws Error if two processes are the leader, or an epoch has two leaders */
  check(): void {
    const epochs = this.processes.flatMap(({ isUp, candidate }) => (isUp ? (candidate?.epoch ?? []) : []));
    if (epochs.length > 1) throw new Error(`Election broken: leaders of the epochs ${epochs.join(' and ')} at once`);
    const [epoch] = epochs;
    if (epoch === undefined) return;
    if (epoch < this.#epoch) throw new Error(`Election broken: epoch ${epoch} follows epoch ${this.#epoch}`);
    this.#epoch = epoch;
  }

  heal(): void {
    this.isOver = true;
    this.network.heal();
    this.store.heal();
    for (const each of this.processes) each.start();
  }

  /** @throws Error unless all processes agree */
  checkAtRest(): void {
    for (const a of this.processes) {
      for (const b of this.processes) {
        if (a.isGateway === b.isGateway) continue;
        if (!a.countsAsAlive(b)) throw new Error(`Membership broken: ${a.name} does not count ${b.name} as alive`);
        const [own, other] = [a.sessions.get(b.name), b.sessions.get(a.name)];
        if (own === undefined || own.number !== other?.number)
          throw new Error(
            `Sessions broken: ${a.name} has session ${own?.number} with ${b.name}, which has ${other?.number}`,
          );
        if (!own.channel.isDelivered || own.sent !== other.delivered)
          throw new Error(`Sessions broken: ${b.name} has ${other.delivered} of ${own.sent} messages of ${a.name}`);
      }
    }
    const leaders = this.processes.filter(({ candidate }) => candidate?.epoch !== undefined);
    if (leaders.length !== 1) throw new Error(`Election broken: ${leaders.length} leaders at rest`);
  }

  #injectLater(): void {
    this.queue.after(this.#prng.exponentialUs(700_000), () => {
      if (this.isOver) return;
      this.#inject();
      this.#injectLater();
    });
  }

  #inject(): void {
    const prng = this.#prng;
    const chosen = this.processes[prng.integer(0, this.processes.length - 1)];
    const forUs = Math.min(5_000_000, prng.exponentialUs(2_500_000));
    switch (prng.integer(0, 4)) {
      case 0:
        if (!chosen.crash()) return;
        countFault(this.injected, 'crash');
        this.queue.after(forUs, () => {
          if (chosen.isUp) return;
          chosen.start();
          countFault(this.injected, 'restart');
        });
        break;
      case 1: {
        const apart = this.processes.filter(() => prng.chance(0.3)).map(({ index }) => index);
        this.network.partition(apart);
        countFault(this.injected, 'partition');
        this.queue.after(forUs, () => this.network.reconnect(apart));
        break;
      }
      case 2:
        if (chosen.suspend(forUs)) countFault(this.injected, 'suspension');
        break;
      case 3:
        this.store.fail(forUs);
        countFault(this.injected, 'store outage');
        break;
      default:
        // Processes that poll have read the record by then. One that is written and lost between two reads is not noticed.
        if (this.store.epochUs < recordReadUs || this.queue.nowUs < this.#lostUs + lossesUs) return;
        this.#lostUs = this.queue.nowUs;
        this.store.lose();
        countFault(this.injected, 'store loss');
    }
  }
}

/** Runs the world of a seed to its end. @throws Error on the first broken rule */
export function runMembershipChaos(seed: number): ChaosCounts<MembershipTotal> {
  const world = new MembershipWorld(seed);
  const check = (): void => world.check();
  world.queue.runUntil(chaosUs, check);
  world.heal();
  world.queue.runUntil(chaosUs + restUs, check);
  world.checkAtRest();
  return {
    faults: world.injected,
    anomalies: new Map(),
    totals: { processes: world.processes.length, ...world.counts, elected: world.store.elected },
  };
}

export const membershipChaos: ChaosKind<MembershipTotal> = {
  name: 'membership',
  run: runMembershipChaos,
  faults: [
    ...(['loss', 'duplication', 'delay', 'partition', 'crash', 'restart'] as const),
    ...(['suspension', 'store outage', 'store loss'] as const),
  ],
  handlers: [],
  totals: ['sessions', 'delivered', 'lostMembers', 'brokenSessions', 'elected'],
};
