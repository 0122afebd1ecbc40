// Membership by heartbeats: which processes of a cluster are alive, as one process observes their announcements and
// their silence.

import { assertNever } from '../../util/assert-never.ts';

/** The heartbeat of one start of a process. */
export interface Announcement {
  readonly name: string;
  /** Grows with each start of the process. */
  readonly incarnation: number;
  /** Counts the announcements of an incarnation. */
  readonly number: number;
}

export type MembershipEvent<A extends Announcement> =
  | { readonly kind: 'announced'; readonly announcement: A }
  /** The process announces its own end. */
  | { readonly kind: 'left'; readonly name: string; readonly incarnation: number }
  /** Messages of the session are lost for good: both sides start a new one. */
  | { readonly kind: 'broken'; readonly name: string; readonly incarnation: number }
  /** Of this process to the bus. While it is down, missing heartbeats are no evidence of a failure. */
  | { readonly kind: 'connection'; readonly up: boolean }
  | { readonly kind: 'wake' };

/** Why a process counts as lost. */
export type LossReason = 'left' | 'sent no heartbeat' | 'restarted' | 'lost messages';

export type MembershipEffect<A extends Announcement> =
  /** The member is alive; all state of an earlier session with it is void. */
  | { readonly kind: 'joined'; readonly member: A }
  | { readonly kind: 'lost'; readonly name: string; readonly incarnation: number; readonly why: LossReason }
  /** The process cannot be a member; emitted once for each incarnation. */
  | { readonly kind: 'refused'; readonly name: string; readonly why: string };

export interface MembershipConfig<A> {
  /** A member that sends no heartbeat for so long is declared failed. */
  readonly timeoutUs: number;
  /** The reason in one line for which a process cannot be a member; undefined: it can. */
  readonly refuses?: (announcement: A) => string | undefined;
}

interface Process {
  incarnation: number;
  number: number;
  announcedUs: number;
  state: 'alive' | 'failed' | 'left' | 'refused';
}

/** Processes that are not alive and still remembered, at most: an older one counts as new. */
export const rememberedMax = 1024;

/**
 * Announcements may be lost, late and duplicated: a lower incarnation or number changes nothing, and only several lost
 * in a row count as a failure. Failures are declared at a `wake` alone: a process that was suspended itself first
 * handles the announcements that arrived meanwhile. A member that was declared failed and announces itself again in the
 * same incarnation (it was suspended, or cut off) joins again.
 */
export class Membership<A extends Announcement> {
  readonly #config: MembershipConfig<A>;
  readonly #processes = new Map<string, Process>();
  #connected = true;
  #effects: MembershipEffect<A>[] = [];

  constructor(config: MembershipConfig<A>) {
    this.#config = config;
  }

  has(name: string, incarnation: number): boolean {
    const known = this.#processes.get(name);
    return known?.state === 'alive' && known.incarnation === incarnation;
  }

  /** Time of the next `wake`. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (!this.#connected) return nextUs;
    for (const { state, announcedUs } of this.#processes.values())
      if (state === 'alive') nextUs = Math.min(nextUs, announcedUs + this.#config.timeoutUs);
    return nextUs;
  }

  /** Handles one event; `nowUs` never decreases. The caller performs the effects in order. */
  step(nowUs: number, event: MembershipEvent<A>): readonly MembershipEffect<A>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'announced':
        this.#announced(nowUs, event.announcement);
        break;
      case 'left':
        this.#left(nowUs, event.name, event.incarnation);
        break;
      case 'broken':
        if (this.has(event.name, event.incarnation)) this.#lose(event.name, 'lost messages', 'failed');
        break;
      case 'connection':
        this.#connect(nowUs, event.up);
        break;
      case 'wake':
        this.#detectFailures(nowUs);
        break;
      default:
        assertNever(event);
    }
    return this.#effects;
  }

  #announced(nowUs: number, announcement: A): void {
    const { name, incarnation, number } = announcement;
    const known = this.#processes.get(name);
    if (known !== undefined && this.#isLate(nowUs, known, announcement)) return;
    if (known !== undefined && incarnation === known.incarnation) {
      known.number = number;
      known.announcedUs = nowUs;
      if (known.state === 'failed') this.#admit(known, announcement);
      return;
    }
    if (known?.state === 'alive') this.#lose(name, 'restarted', 'failed');
    const joining: Process = { incarnation, number, announcedUs: nowUs, state: 'failed' };
    this.#remember(name, joining);
    this.#admit(joining, announcement);
  }

  /**
   * A lower incarnation is an earlier start, unless the name has been unused for long: then the clock of the process
   * was set back.
   */
  #isLate(nowUs: number, { incarnation, number, state, announcedUs }: Process, announcement: A): boolean {
    if (announcement.incarnation === incarnation) return announcement.number <= number;
    const unused = state !== 'alive' && nowUs - announcedUs >= 2 * this.#config.timeoutUs;
    return announcement.incarnation < incarnation && !unused;
  }

  #admit(joining: Process, announcement: A): void {
    const why = this.#config.refuses?.(announcement);
    joining.state = why === undefined ? 'alive' : 'refused';
    this.#effects.push(
      why === undefined ? { kind: 'joined', member: announcement } : { kind: 'refused', name: announcement.name, why },
    );
  }

  #left(nowUs: number, name: string, incarnation: number): void {
    const known = this.#processes.get(name);
    if (known !== undefined && incarnation < known.incarnation) return;
    if (known?.state === 'alive') this.#lose(name, incarnation === known.incarnation ? 'left' : 'restarted', 'left');
    // A late announcement of this incarnation must not bring it back.
    this.#remember(name, { incarnation, number: Number.POSITIVE_INFINITY, announcedUs: nowUs, state: 'left' });
  }

  /** After a reconnect every member has the full timeout again. */
  #connect(nowUs: number, up: boolean): void {
    if (up && !this.#connected) for (const known of this.#processes.values()) known.announcedUs = nowUs;
    this.#connected = up;
  }

  #detectFailures(nowUs: number): void {
    if (!this.#connected) return;
    for (const [name, { state, announcedUs }] of this.#processes)
      if (state === 'alive' && nowUs - announcedUs >= this.#config.timeoutUs)
        this.#lose(name, 'sent no heartbeat', 'failed');
  }

  #lose(name: string, why: LossReason, state: Process['state']): void {
    const known = this.#processes.get(name);
    if (known === undefined) return;
    known.state = state;
    this.#effects.push({ kind: 'lost', name, incarnation: known.incarnation, why });
  }

  #remember(name: string, joining: Process): void {
    // The map is in the order of the latest change.
    this.#processes.delete(name);
    this.#processes.set(name, joining);
    let over = this.#processes.size - rememberedMax;
    for (const [other, { state }] of this.#processes) {
      if (over <= 0) return;
      if (state === 'alive') continue;
      this.#processes.delete(other);
      over--;
    }
  }
}
