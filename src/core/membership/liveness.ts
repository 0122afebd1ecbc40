// Who of a cluster is there, judged by what each hears of the others: announcements at equal distances, and silence.

/** One start of a process. Lives of one name only grow; numbers count the announcements of a life. */
export interface Announcement {
  readonly name: string;
  readonly incarnation: number;
  readonly number: number;
}

export type MembershipEvent<A extends Announcement> =
  | { readonly kind: 'announced'; readonly announcement: A }
  /** It says that it goes. */
  | { readonly kind: 'left'; readonly name: string; readonly incarnation: number }
  /** What was said between us and it is lost: we begin anew. */
  | { readonly kind: 'broken'; readonly name: string; readonly incarnation: number }
  /** Of our own: while it is down, silence is no sign of anything. */
  | { readonly kind: 'connection'; readonly up: boolean }
  | { readonly kind: 'wake' };

export type Departure = 'left' | 'fell silent' | 'was started anew' | 'lost the thread';

export type MembershipEffect<A extends Announcement> =
  /** It is there, and whatever it had of us or we of it is over. */
  | { readonly kind: 'joined'; readonly member: A }
  | { readonly kind: 'lost'; readonly name: string; readonly incarnation: number; readonly why: Departure }
  /** It cannot be one of us; said once for each life. */
  | { readonly kind: 'refused'; readonly name: string; readonly why: string };

export interface MembershipConfig<A> {
  /** Who says nothing for so long is lost. */
  readonly silentUs: number;
  /** One line that says why it cannot be one of us; undefined: it can. */
  readonly refuses?: (announcement: A) => string | undefined;
}

interface Known {
  incarnation: number;
  number: number;
  heardUs: number;
  state: 'there' | 'away' | 'left' | 'refused';
}

/** Names of those that are away, remembered at most: what is heard of an older one is taken for news. */
const awayMax = 1024;

/**
 * Announcements may be lost, late and doubled: a lower life or number changes nothing, and only too many lost ones in a row are silence.
 * Silence is judged at a `wake` alone: whoever could not run itself hears first what came meanwhile.
 * One that was given up and speaks again in the same life (it was paused, or cut off) joins anew.
 */
export class Membership<A extends Announcement> {
  readonly #config: MembershipConfig<A>;
  readonly #known = new Map<string, Known>();
  #up = true;
  #effects: MembershipEffect<A>[] = [];

  constructor(config: MembershipConfig<A>) {
    this.#config = config;
  }

  has(name: string, incarnation: number): boolean {
    const known = this.#known.get(name);
    return known?.state === 'there' && known.incarnation === incarnation;
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (!this.#up) return nextUs;
    for (const { state, heardUs } of this.#known.values())
      if (state === 'there') nextUs = Math.min(nextUs, heardUs + this.#config.silentUs);
    return nextUs;
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: MembershipEvent<A>): readonly MembershipEffect<A>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'announced':
        this.#hear(nowUs, event.announcement);
        break;
      case 'left':
        this.#leave(nowUs, event.name, event.incarnation);
        break;
      case 'broken':
        if (this.has(event.name, event.incarnation)) this.#lose(event.name, 'lost the thread', 'away');
        break;
      case 'connection':
        this.#connect(nowUs, event.up);
        break;
      case 'wake':
        this.#judge(nowUs);
        break;
    }
    return this.#effects;
  }

  #hear(nowUs: number, announcement: A): void {
    const { name, incarnation, number } = announcement;
    const known = this.#known.get(name);
    if (known !== undefined && this.#isLate(nowUs, known, announcement)) return;
    if (known !== undefined && incarnation === known.incarnation) {
      known.number = number;
      known.heardUs = nowUs;
      if (known.state === 'away') this.#admit(known, announcement);
      return;
    }
    if (known?.state === 'there') this.#lose(name, 'was started anew', 'away');
    const newcomer: Known = { incarnation, number, heardUs: nowUs, state: 'away' };
    this.#remember(name, newcomer);
    this.#admit(newcomer, announcement);
  }

  /** A lower life is an earlier one, unless nobody has had the name for long: then a clock was set back. */
  #isLate(nowUs: number, { incarnation, number, state, heardUs }: Known, announcement: A): boolean {
    if (announcement.incarnation === incarnation) return announcement.number <= number;
    const vacant = state !== 'there' && nowUs - heardUs >= 2 * this.#config.silentUs;
    return announcement.incarnation < incarnation && !vacant;
  }

  #admit(known: Known, announcement: A): void {
    const why = this.#config.refuses?.(announcement);
    known.state = why === undefined ? 'there' : 'refused';
    this.#effects.push(
      why === undefined ? { kind: 'joined', member: announcement } : { kind: 'refused', name: announcement.name, why },
    );
  }

  #leave(nowUs: number, name: string, incarnation: number): void {
    const known = this.#known.get(name);
    if (known !== undefined && incarnation < known.incarnation) return;
    if (known?.state === 'there')
      this.#lose(name, incarnation === known.incarnation ? 'left' : 'was started anew', 'left');
    // What is announced late of this life must not bring it back.
    this.#remember(name, { incarnation, number: Number.POSITIVE_INFINITY, heardUs: nowUs, state: 'left' });
  }

  /** Nobody could be heard: all have their time again from when they can be. */
  #connect(nowUs: number, up: boolean): void {
    if (up && !this.#up) for (const known of this.#known.values()) known.heardUs = nowUs;
    this.#up = up;
  }

  #judge(nowUs: number): void {
    if (!this.#up) return;
    for (const [name, { state, heardUs }] of this.#known)
      if (state === 'there' && nowUs - heardUs >= this.#config.silentUs) this.#lose(name, 'fell silent', 'away');
  }

  #lose(name: string, why: Departure, state: Known['state']): void {
    const known = this.#known.get(name);
    if (known === undefined) return;
    known.state = state;
    this.#effects.push({ kind: 'lost', name, incarnation: known.incarnation, why });
  }

  #remember(name: string, known: Known): void {
    // The latest stands last.
    this.#known.delete(name);
    this.#known.set(name, known);
    let over = this.#known.size - awayMax;
    for (const [other, { state }] of this.#known) {
      if (over <= 0) return;
      if (state === 'there') continue;
      this.#known.delete(other);
      over--;
    }
  }
}
