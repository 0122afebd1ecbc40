// One role of a process on the bus: announces it, detects its peers, and keeps a session with each peer over a reliable channel.

import {
  type Announcement,
  type LossReason,
  Membership,
  type MembershipEvent,
  rememberedMax,
} from '../../core/membership/liveness.ts';
import { type ChannelEffect, type ChannelEvent, ReliableChannel } from '../../core/membership/reliable-channel.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { Bus } from '../bus/bus.ts';
import { Alarm, carryOutStep, nowUs } from '../threads/alarm.ts';
import { encode } from '../wire/codec.ts';
import { decodeFrame, encodeFrame, type Frame } from '../wire/frames.ts';
import { readAnyAnnouncement, readDeparture } from '../wire/messages.ts';
import { commonVersion, describeVersions, statedVersions, type WireVersions, wireVersions } from '../wire/versions.ts';
import type { HeartbeatRepeater } from './heartbeat-thread.ts';

/** Interval of announcements, and of acks in each session. */
export const heartbeatMs = 500;
/** A peer is declared lost after seven missed heartbeats. */
export const silentUs = 3_500_000;

/** One start of a process of the cluster. */
export interface ClusterProcess {
  readonly bus: Bus;
  readonly name: string;
  /** Increases with each start of a process of this name. */
  readonly incarnation: number;
  log(message: string): void;
  /** Those of this release unless given. */
  readonly versions?: WireVersions;
  /** Announces the roles of the process while its event loop stalls; the process closes it. */
  readonly heartbeats?: HeartbeatRepeater | undefined;
}

/** The other end of a session. */
export interface Peer<Theirs extends Announcement> {
  readonly member: Theirs;
  /** Numbered by the leading side. A new session shares no state with earlier ones. */
  readonly session: number;
}

/** What a process remembers of another one beyond their sessions. */
interface KnownProcess {
  /** The incarnation of the last session. */
  readonly incarnation?: number;
  /** The number of the last session; the same incarnation never has a lower one. */
  readonly session?: number;
  /** The wire version that both sides have. */
  readonly version?: number;
  /** The last incarnation without a common wire version. */
  readonly foreign?: number;
}

interface Session<Theirs extends Announcement> extends Peer<Theirs> {
  readonly channel: ReliableChannel;
}

/**
 * For each role: the role of its peers, which side leads (starts sessions), and the subjects on which it receives and sends. Gateways have
 * sessions with instances, prefill with decode instances, and lenders, fetchers, pipeline stages and gateways that forward requests with their
 * equals. One process may have several roles.
 */
const roles = {
  gateway: { peers: 'instance', leads: true, receives: 'link', sends: 'link' },
  instance: { peers: 'gateway', leads: false, receives: 'link', sends: 'link' },
  prefill: { peers: 'decode', leads: true, receives: 'peerback', sends: 'peer' },
  decode: { peers: 'prefill', leads: false, receives: 'peer', sends: 'peerback' },
  lender: { peers: 'lender', leads: 'byName', receives: 'lend', sends: 'lend' },
  fetcher: { peers: 'fetcher', leads: 'byName', receives: 'fetch', sends: 'fetch' },
  stage: { peers: 'stage', leads: 'byName', receives: 'stage', sends: 'stage' },
  forwarder: { peers: 'forwarder', leads: 'byName', receives: 'forward', sends: 'forward' },
} as const;
export type PeerRole = keyof typeof roles;

/** The owner of a PeerSession. */
export interface PeerHandler<Theirs extends Announcement> {
  /** Fields of the announcement besides name and incarnation, as of now. */
  announcement?(): object;
  /** @throws Error for a malformed announcement */
  readAnnouncement(bytes: Uint8Array): Theirs;
  /** Reason to refuse a peer, in one line. */
  refuses?(member: Theirs): string | undefined;
  /** A session has started; its state is empty on both sides. */
  onJoined(peer: Peer<Theirs>): void;
  onLost(peer: Peer<Theirs>, why: LossReason): void;
  /** @throws Error for a malformed message: both sides then start a new session */
  onMessage(peer: Peer<Theirs>, message: Uint8Array): void;
  /** A later incarnation has this process's name: this one receives nothing more. */
  onReplaced?(): void;
  /** Status that is sent with each ack. */
  status?(peer: Peer<Theirs>): Uint8Array;
  onStatus?(peer: Peer<Theirs>, status: Uint8Array): void;
}

export class PeerSession<Theirs extends Announcement> {
  readonly #process: ClusterProcess;
  readonly #role: PeerRole;
  readonly #handler: PeerHandler<Theirs>;
  readonly #membership: Membership<Theirs>;
  /** By name, the live peers. */
  readonly #members = new Map<string, Theirs>();
  /** By name. */
  readonly #sessions = new Map<string, Session<Theirs>>();
  /** By name, what outlives sessions. */
  readonly #known = new Map<string, KnownProcess>();
  readonly #versions: WireVersions;
  readonly #alarm = new Alarm(() => this.#wake());
  readonly #stops: (() => void)[] = [];
  #heartbeat: NodeJS.Timeout | undefined;
  /** The last log line about ignored input. */
  #lastIgnored = '';
  #announcements = 0;
  #closed = false;

  constructor(process: ClusterProcess, role: PeerRole, handler: PeerHandler<Theirs>) {
    this.#process = process;
    this.#role = role;
    this.#versions = process.versions ?? wireVersions;
    this.#handler = handler;
    this.#membership = new Membership({ timeoutUs: silentUs, refuses: (member) => handler.refuses?.(member) });
  }

  /** Announces this process, and sends and receives from now on. */
  start(): void {
    const { bus, name, incarnation } = this.#process;
    const { peers, receives } = roles[this.#role];
    this.#stops.push(
      bus.subscribe(`beat.${peers}`, (bytes) => this.#guard('announcement', () => this.#onAnnouncement(bytes))),
      bus.subscribe(`beat.${this.#role}`, (bytes) => this.#guard('announcement', () => this.#onOwnRole(bytes))),
      bus.subscribe(`leave.${peers}`, (bytes) =>
        this.#guard('departure', () => this.#feed({ kind: 'left', ...readDeparture(bytes) })),
      ),
      bus.subscribe(`${receives}.${name}.${incarnation}.*.*`, (payload, subject) =>
        this.#guard('frame', () => this.#onFrame(subject, payload)),
      ),
      bus.watchConnection((up) => this.#onConnection(up)),
    );
    this.#heartbeat = setInterval(() => this.#sendHeartbeats(), heartbeatMs);
    this.announce();
  }

  /** Delivers the message once and in order, or ends the session. Without a session it does nothing. */
  send({ member }: Peer<Theirs>, message: Uint8Array): void {
    const session = this.#sessions.get(member.name);
    if (session !== undefined) this.#step(session, { kind: 'send', message });
  }

  /** Announces the departure, and ends all sessions. The bus stays open. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#heartbeat);
    this.#alarm.set(Number.POSITIVE_INFINITY);
    for (const stop of this.#stops) stop();
    const { bus, name, incarnation } = this.#process;
    announceDeparture(bus, this.#role, name, incarnation);
  }

  /** True once the peer has received all messages, and this process all that it had sent before it received them. */
  hasDelivered({ member }: Peer<Theirs>): boolean {
    return this.#sessions.get(member.name)?.channel.isDelivered !== false;
  }

  /** Acknowledges what has been received now instead of at the next heartbeat. */
  acknowledge({ member }: Peer<Theirs>): void {
    const session = this.#sessions.get(member.name);
    if (session !== undefined) this.#ack(session);
  }

  /** Announces now instead of at the next heartbeat. */
  announce(): void {
    const { bus, name, incarnation, heartbeats } = this.#process;
    const subject = `beat.${this.#role}`;
    const number = heartbeats?.nextNumber() ?? ++this.#announcements;
    const announcement = { ...statedVersions(this.#versions), name, incarnation, ...this.#handler.announcement?.() };
    bus.publish(subject, encode({ ...announcement, number }));
    heartbeats?.announced(subject, announcement);
  }

  #sendHeartbeats(): void {
    this.announce();
    for (const current of this.#sessions.values()) this.#ack(current);
  }

  #ack(current: Session<Theirs>): void {
    const { session, channel } = current;
    const bytes = this.#handler.status?.(current) ?? new Uint8Array();
    this.#publish(current, { kind: 'ack', session, ...channel.ack, bytes });
  }

  /** Between equals, the process with the first name in sort order leads. */
  #leads(other: string): boolean {
    const { leads } = roles[this.#role];
    return leads === 'byName' ? this.#process.name < other : leads;
  }

  #onConnection(up: boolean): void {
    this.#feed({ kind: 'connection', up });
    // Peers need not wait for the next heartbeat.
    if (up && !this.#closed) this.#sendHeartbeats();
  }

  /** Handles messages that arrived while this process was suspended first: most peers that seem silent have sent heartbeats. */
  #wake(): void {
    setImmediate(() => {
      if (!this.#closed) this.#feed({ kind: 'wake' });
    });
  }

  /** Malformed input must not end this process. */
  #guard(what: string, handle: () => void): void {
    try {
      if (!this.#closed) handle();
    } catch (error) {
      const line = `Ignored ${what}: ${error instanceof Error ? error.message : String(error)}`;
      // Announcements are repeated; the line is not.
      if (line !== this.#lastIgnored) this.#process.log(line);
      this.#lastIgnored = line;
    }
  }

  #onAnnouncement(bytes: Uint8Array): void {
    if (this.#isForeign(bytes)) return;
    const announcement = this.#handler.readAnnouncement(bytes);
    // Between equals a process also receives its own announcements.
    if (announcement.name !== this.#process.name) this.#feed({ kind: 'announced', announcement });
  }

  /** Logged once for each incarnation. */
  #isForeign(bytes: Uint8Array): boolean {
    const { name, incarnation, ...theirs } = readAnyAnnouncement(bytes);
    const common = commonVersion(theirs, this.#versions);
    if (common !== undefined) {
      this.#remember(name, { version: common });
      return false;
    }
    if (this.#known.get(name)?.foreign !== incarnation)
      this.#process.log(
        `Refused ${name}: its wire version is ${describeVersions(theirs)}, that of this process ${describeVersions(statedVersions(this.#versions))}`,
      );
    this.#remember(name, { foreign: incarnation });
    return true;
  }

  #onOwnRole(bytes: Uint8Array): void {
    const { name, incarnation } = this.#process;
    const other = readAnyAnnouncement(bytes);
    if (other.name === name && other.incarnation > incarnation) this.#handler.onReplaced?.();
  }

  #feed(event: MembershipEvent<Theirs>): void {
    carryOutStep(
      () => this.#membership.step(nowUs(), event),
      (effect) => {
        if (effect.kind === 'refused') this.#process.log(`Refused ${effect.name}: ${effect.why}`);
        else if (effect.kind === 'lost') this.#removeMember(effect.name, effect.why);
        else this.#join(effect.member);
      },
      () => this.#alarm.set(this.#membership.nextUs),
    );
  }

  #join(member: Theirs): void {
    this.#members.set(member.name, member);
    // A new peer has not received our announcements.
    this.announce();
    if (!this.#leads(member.name)) return;
    const current = this.#begin(member, this.#lastSession(member) + 1);
    // Third processes may refer to this session before the next heartbeat.
    if (this.#sessions.get(member.name) === current) this.#ack(current);
  }

  #removeMember(name: string, why: LossReason): void {
    this.#members.delete(name);
    this.#end(name, why);
    const known = this.#known.get(name);
    this.#known.delete(name);
    // An incarnation that has left never returns. The map is in the order of the latest change.
    if (known !== undefined && why !== 'left') this.#known.set(name, known);
  }

  #lastSession({ name, incarnation }: Announcement): number {
    const { incarnation: last, session = 0 } = this.#known.get(name) ?? {};
    return last === incarnation ? session : 0;
  }

  #remember(name: string, change: KnownProcess): void {
    const known = this.#known.get(name);
    if (known === undefined) this.#forgetOldest();
    this.#known.set(name, { ...known, ...change });
  }

  /** Of the processes without a session, as many stay as the membership remembers. */
  #forgetOldest(): void {
    let over = this.#known.size - this.#members.size + 1 - rememberedMax;
    for (const name of this.#known.keys()) {
      if (over <= 0) return;
      if (this.#members.has(name)) continue;
      this.#known.delete(name);
      over--;
    }
  }

  #begin(member: Theirs, session: number): Session<Theirs> {
    const current = { member, session, channel: new ReliableChannel() };
    this.#remember(member.name, { incarnation: member.incarnation, session });
    this.#sessions.set(member.name, current);
    this.#handler.onJoined(current);
    return current;
  }

  #end(name: string, why: LossReason): void {
    const current = this.#sessions.get(name);
    this.#sessions.delete(name);
    if (current !== undefined) this.#handler.onLost(current, why);
  }

  #onFrame(subject: string, payload: Uint8Array): void {
    const [name = '', incarnation] = subject.split('.').slice(3);
    const member = this.#members.get(name);
    // A frame may precede the announcement or follow the departure; the channel repeats what matters.
    if (member === undefined || String(member.incarnation) !== incarnation) return;
    const frame = decodeFrame(payload, this.#versions);
    const current = this.#sessionOf(member, frame);
    if (current === undefined) return;
    if (frame.kind === 'ended') {
      this.#reset(current, 'the other side started a new session');
      return;
    }
    this.#step(current, frame.kind === 'part' ? { kind: 'part', part: frame } : frame);
    if (frame.kind === 'ack' && this.#sessions.get(name) === current) this.#handler.onStatus?.(current, frame.bytes);
  }

  /** The session of the frame, which may start it; undefined if it belongs to another one. */
  #sessionOf(member: Theirs, { session, kind }: Frame): Session<Theirs> | undefined {
    const current = this.#sessions.get(member.name);
    if (current?.session === session) return current;
    if (this.#leads(member.name)) return undefined;
    if (session > this.#lastSession(member)) {
      this.#end(member.name, 'lost messages');
      return this.#begin(member, session);
    }
    // The leading side has not noticed the end of the session.
    if (current === undefined && kind === 'ack') this.#publish({ member }, { kind: 'ended', session });
    return undefined;
  }

  #step(current: Session<Theirs>, event: ChannelEvent): void {
    for (const effect of current.channel.step(event)) {
      if (this.#sessions.get(current.member.name) !== current) return;
      this.#carryOut(current, effect);
    }
  }

  #carryOut(current: Session<Theirs>, effect: ChannelEffect): void {
    const { session } = current;
    switch (effect.kind) {
      case 'publish':
        this.#publish(current, { kind: 'part', session, ...effect.part });
        break;
      case 'nack':
        this.#publish(current, { kind: 'nack', session, from: effect.from });
        break;
      case 'broken':
        this.#reset(current, effect.why);
        break;
      case 'deliver':
        try {
          this.#handler.onMessage(current, effect.message);
        } catch (error) {
          this.#reset(current, error instanceof Error ? error.message : String(error));
        }
        break;
      default:
        assertNever(effect);
    }
  }

  /** Both sides start a new session: the leading side at the next announcement, the other one after that. */
  #reset(current: Session<Theirs>, why: string): void {
    const { name, incarnation } = current.member;
    this.#process.log(`Session with ${name} is over: ${why}`);
    if (this.#leads(name)) this.#feed({ kind: 'broken', name, incarnation });
    else {
      this.#publish(current, { kind: 'ended', session: current.session });
      this.#end(name, 'lost messages');
    }
  }

  #publish({ member }: Pick<Peer<Theirs>, 'member'>, frame: Frame): void {
    const { bus, name, incarnation } = this.#process;
    bus.publish(
      `${roles[this.#role].sends}.${member.name}.${member.incarnation}.${name}.${incarnation}`,
      encodeFrame(frame, this.#known.get(member.name)?.version),
    );
  }
}

/** Announces that this incarnation sends nothing more; published by the process itself or by an observer of its death. */
export function announceDeparture(bus: Bus, role: PeerRole, name: string, incarnation: number): void {
  bus.publish(`leave.${role}`, encode({ name, incarnation }));
}
