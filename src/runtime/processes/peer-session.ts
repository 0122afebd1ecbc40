// One process of a cluster on the bus: announces itself, hears who is there of the kind that it deals with, and keeps a link to each.

import { type Announcement, type Departure, Membership, type MembershipEvent } from '../../core/membership/liveness.ts';
import { type ChannelEffect, type ChannelEvent, ReliableChannel } from '../../core/membership/reliable-channel.ts';
import type { Bus } from '../bus/bus.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import { encode } from '../wire/codec.ts';
import { decodeFrame, encodeFrame, type Frame, wireVersion } from '../wire/frames.ts';
import { readAnyAnnouncement, readDeparture } from '../wire/messages.ts';

/** Between two announcements, and two tallies of each link. */
const beatMs = 500;
/** Seven announcements in a row are lost, or not said. */
export const silentUs = 3_500_000;

/** The other end of a link. */
export interface Peer<Theirs extends Announcement> {
  readonly member: Theirs;
  /** Numbered by the side that leads: with each one both sides have nothing of one another. */
  readonly session: number;
}

interface Linked<Theirs extends Announcement> extends Peer<Theirs> {
  readonly link: ReliableChannel;
}

/**
 * Who deals with whom, who of the two begins sessions, and by which subjects they hear and tell: a gateway with instances, one that prefills with those
 * that decode, those that lend, fetch prefixes or compute prompts together, with one another. A process may prefill and decode.
 */
const kinds = {
  gateway: { others: 'instance', leads: true, hears: 'link', tells: 'link' },
  instance: { others: 'gateway', leads: false, hears: 'link', tells: 'link' },
  prefill: { others: 'decode', leads: true, hears: 'peerback', tells: 'peer' },
  decode: { others: 'prefill', leads: false, hears: 'peer', tells: 'peerback' },
  lender: { others: 'lender', leads: 'byName', hears: 'lend', tells: 'lend' },
  fetcher: { others: 'fetcher', leads: 'byName', hears: 'fetch', tells: 'fetch' },
  stage: { others: 'stage', leads: 'byName', hears: 'stage', tells: 'stage' },
} as const;
export type PeerKind = keyof typeof kinds;

export interface PeerSessionOptions<Theirs extends Announcement> {
  readonly bus: Bus;
  readonly kind: PeerKind;
  readonly name: string;
  readonly incarnation: number;
  /** What it says of itself besides, now. */
  readonly about: object;
  /** @throws Error for what is none of theirs */
  readonly read: (bytes: Uint8Array) => Theirs;
  /** One line that says why it cannot be one of us. */
  readonly refuses?: (member: Theirs) => string | undefined;
  /** Carries out what the other side begins anew. */
  readonly onJoined: (peer: Peer<Theirs>) => void;
  readonly onLost: (peer: Peer<Theirs>, why: Departure) => void;
  /** @throws Error when it is none that can be taken: then both sides begin anew */
  readonly onMessage: (peer: Peer<Theirs>, message: Uint8Array) => void;
  /** A later start has this process's name: nobody listens to this one any more. */
  readonly onReplaced?: () => void;
  /** What is told with each tally. */
  readonly status?: (peer: Peer<Theirs>) => Uint8Array;
  readonly onStatus?: (peer: Peer<Theirs>, status: Uint8Array) => void;
  readonly log: (message: string) => void;
}

export class PeerSession<Theirs extends Announcement> {
  readonly #options: PeerSessionOptions<Theirs>;
  readonly #membership: Membership<Theirs>;
  /** By name, those that are there. */
  readonly #present = new Map<string, Theirs>();
  /** By name, those with whom a session has begun. */
  readonly #links = new Map<string, Linked<Theirs>>();
  /** By name: the last session, and with which start of it. */
  readonly #sessions = new Map<string, { readonly incarnation: number; readonly session: number }>();
  /** By name: the last start that spoke another version. */
  readonly #foreign = new Map<string, number>();
  readonly #alarm = new Alarm(() => this.#wake());
  readonly #stops: (() => void)[] = [];
  #beat: NodeJS.Timeout | undefined;
  /** What was said of the last thing that was ignored. */
  #ignored = '';
  #number = 0;
  #closed = false;

  constructor(options: PeerSessionOptions<Theirs>) {
    this.#options = options;
    this.#membership = new Membership({ timeoutUs: silentUs, refuses: (member) => options.refuses?.(member) });
  }

  /** Hears and is heard from now on. */
  start(): void {
    const { bus, kind, name, incarnation } = this.#options;
    const { others, hears } = kinds[kind];
    this.#stops.push(
      bus.subscribe(`beat.${others}`, (bytes) => this.#try('announcement', () => this.#hearBeat(bytes))),
      bus.subscribe(`beat.${kind}`, (bytes) => this.#try('announcement', () => this.#hearOwnKind(bytes))),
      bus.subscribe(`leave.${others}`, (bytes) =>
        this.#try('farewell', () => this.#feed({ kind: 'left', ...readDeparture(bytes) })),
      ),
      bus.subscribe(`${hears}.${name}.${incarnation}.*.*`, (payload, subject) =>
        this.#try('frame', () => this.#hearFrame(subject, payload)),
      ),
      bus.watchConnection((up) => this.#connect(up)),
    );
    this.#beat = setInterval(() => this.#tell(), beatMs);
    this.announce();
  }

  /** Told once for each peer that has a session, in order and whole, or the session ends. */
  send({ member }: Peer<Theirs>, message: Uint8Array): void {
    const linked = this.#links.get(member.name);
    if (linked !== undefined) this.#step(linked, { kind: 'send', message });
  }

  /** Says goodbye, and hears no more. The bus stays open. */
  close(): void {
    if (this.#closed) return;
    const { bus, kind, name, incarnation } = this.#options;
    this.#closed = true;
    clearInterval(this.#beat);
    this.#alarm.set(Number.POSITIVE_INFINITY);
    for (const stop of this.#stops) stop();
    sayFarewell(bus, kind, name, incarnation);
  }

  /** Nobody has to wait for the next beat. */
  announce(): void {
    const { bus, kind, name, incarnation, about } = this.#options;
    bus.publish(`beat.${kind}`, encode({ version: wireVersion, name, incarnation, number: ++this.#number, ...about }));
  }

  #tell(): void {
    this.announce();
    for (const linked of this.#links.values()) this.#tally(linked);
  }

  #tally(linked: Linked<Theirs>): void {
    const { session, link } = linked;
    const bytes = this.#options.status?.(linked) ?? new Uint8Array();
    this.#publish(linked, { kind: 'ack', session, ...link.ack, bytes });
  }

  /** Among equals, whose name comes first. */
  #leads(other: string): boolean {
    const { leads } = kinds[this.#options.kind];
    return leads === 'byName' ? this.#options.name < other : leads;
  }

  #connect(up: boolean): void {
    this.#feed({ kind: 'connection', up });
    // Nobody has to wait for the next beat.
    if (up && !this.#closed) this.#tell();
  }

  /** What came while this process could not run is heard first: most of those that seem silent have spoken. */
  #wake(): void {
    setImmediate(() => {
      if (!this.#closed) this.#feed({ kind: 'wake' });
    });
  }

  /** Others may say what they like: it must not end this process. */
  #try(what: string, hear: () => void): void {
    try {
      if (!this.#closed) hear();
    } catch (error) {
      const line = `Ignored ${what}: ${error instanceof Error ? error.message : String(error)}`;
      // What is wrong with one announcement is wrong with the next.
      if (line !== this.#ignored) this.#options.log(line);
      this.#ignored = line;
    }
  }

  #hearBeat(bytes: Uint8Array): void {
    if (this.#isForeign(bytes)) return;
    const announcement = this.#options.read(bytes);
    // Where all are of one kind it hears itself.
    if (announcement.name !== this.#options.name) this.#feed({ kind: 'announced', announcement });
  }

  /** Said once of each start of a process. */
  #isForeign(bytes: Uint8Array): boolean {
    const { name, incarnation, version } = readAnyAnnouncement(bytes);
    if (version === wireVersion) return false;
    if (this.#foreign.get(name) !== incarnation)
      this.#options.log(`Refused ${name}: it speaks version ${version ?? 'none'}, this process ${wireVersion}`);
    this.#foreign.set(name, incarnation);
    return true;
  }

  #hearOwnKind(bytes: Uint8Array): void {
    const { name, incarnation, onReplaced } = this.#options;
    const other = readAnyAnnouncement(bytes);
    if (other.name === name && other.incarnation > incarnation) onReplaced?.();
  }

  #feed(event: MembershipEvent<Theirs>): void {
    for (const effect of this.#membership.step(nowUs(), event)) {
      if (effect.kind === 'refused') this.#options.log(`Refused ${effect.name}: ${effect.why}`);
      else if (effect.kind === 'lost') this.#lose(effect.name, effect.why);
      else this.#join(effect.member);
    }
    this.#alarm.set(this.#membership.nextUs);
  }

  #join(member: Theirs): void {
    this.#present.set(member.name, member);
    // Whoever is new has not heard of us.
    this.announce();
    if (!this.#leads(member.name)) return;
    const linked = this.#begin(member, this.#lastSession(member) + 1);
    // Others may speak to it of us before the next tally is due.
    if (this.#links.get(member.name) === linked) this.#tally(linked);
  }

  #lose(name: string, why: Departure): void {
    this.#present.delete(name);
    this.#end(name, why);
  }

  #lastSession({ name, incarnation }: Announcement): number {
    const last = this.#sessions.get(name);
    return last?.incarnation === incarnation ? last.session : 0;
  }

  #begin(member: Theirs, session: number): Linked<Theirs> {
    const linked = { member, session, link: new ReliableChannel() };
    this.#sessions.set(member.name, { incarnation: member.incarnation, session });
    this.#links.set(member.name, linked);
    this.#options.onJoined(linked);
    return linked;
  }

  #end(name: string, why: Departure): void {
    const linked = this.#links.get(name);
    this.#links.delete(name);
    if (linked !== undefined) this.#options.onLost(linked, why);
  }

  #hearFrame(subject: string, payload: Uint8Array): void {
    const [name = '', incarnation] = subject.split('.').slice(3);
    const member = this.#present.get(name);
    // Not announced yet, or not any more: what matters is said again.
    if (member === undefined || String(member.incarnation) !== incarnation) return;
    const frame = decodeFrame(payload);
    const linked = this.#linkedFor(member, frame);
    if (linked === undefined) return;
    if (frame.kind === 'over') {
      this.#breakOff(linked, 'the other side started a new session');
      return;
    }
    this.#step(linked, frame.kind === 'part' ? { kind: 'part', part: frame } : frame);
    if (frame.kind === 'ack' && this.#links.get(name) === linked) this.#options.onStatus?.(linked, frame.bytes);
  }

  /** The link of the frame's session, which it may begin; undefined: it is of another one. */
  #linkedFor(member: Theirs, { session, kind }: Frame): Linked<Theirs> | undefined {
    const linked = this.#links.get(member.name);
    if (linked?.session === session) return linked;
    if (this.#leads(member.name)) return undefined;
    if (session > this.#lastSession(member)) {
      this.#end(member.name, 'lost messages');
      return this.#begin(member, session);
    }
    // Who leads has not noticed that it is over.
    if (linked === undefined && kind === 'ack') this.#publish({ member }, { kind: 'over', session });
    return undefined;
  }

  #step(linked: Linked<Theirs>, event: ChannelEvent): void {
    for (const effect of linked.link.step(event)) {
      if (this.#links.get(linked.member.name) !== linked) return;
      this.#carryOut(linked, effect);
    }
  }

  #carryOut(linked: Linked<Theirs>, effect: ChannelEffect): void {
    const { session } = linked;
    switch (effect.kind) {
      case 'publish':
        this.#publish(linked, { kind: 'part', session, ...effect.part });
        break;
      case 'nack':
        this.#publish(linked, { kind: 'nack', session, from: effect.from });
        break;
      case 'broken':
        this.#breakOff(linked, effect.why);
        break;
      case 'deliver':
        try {
          this.#options.onMessage(linked, effect.message);
        } catch (error) {
          this.#breakOff(linked, error instanceof Error ? error.message : String(error));
        }
    }
  }

  /** Both sides begin anew: who leads with the next announcement, the other one when that has. */
  #breakOff(linked: Linked<Theirs>, why: string): void {
    const { name, incarnation } = linked.member;
    this.#options.log(`Session with ${name} is over: ${why}`);
    if (this.#leads(name)) this.#feed({ kind: 'broken', name, incarnation });
    else {
      this.#publish(linked, { kind: 'over', session: linked.session });
      this.#end(name, 'lost messages');
    }
  }

  #publish({ member }: Pick<Peer<Theirs>, 'member'>, frame: Frame): void {
    const { bus, kind, name, incarnation } = this.#options;
    bus.publish(`${kinds[kind].tells}.${member.name}.${member.incarnation}.${name}.${incarnation}`, encodeFrame(frame));
  }
}

/** That start of a process says nothing more: by itself, or by whoever knows that it has died. */
export function sayFarewell(bus: Bus, kind: PeerKind, name: string, incarnation: number): void {
  bus.publish(`leave.${kind}`, encode({ name, incarnation }));
}
