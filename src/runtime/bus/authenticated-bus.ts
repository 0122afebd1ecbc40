// A bus whose messages and records carry a MAC under the cluster token and a number, messages also a time: a client of the server without
// the token can forge none. Replays are refused within limits: a process that has just started accepts a message of the last 60 s, and a
// record of any age; a later record is accepted unless it is older by more than 60 s than one that the process has read.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { AuthenticatedRecords, AuthenticatedSnapshots } from './authenticated-records.ts';
import type { Bus, Subject } from './bus.ts';

const macBytes = 16;
const senderBytes = 12;
/** MAC, sender, number, time. */
const headBytes = macBytes + senderBytes + 16;
/** Messages of one sender may overtake one another by fewer than this. */
const windowSize = 1024;
/** Larger than differences of clocks and delays; a message is not accepted later. */
const ageMsMax = 60_000;
const logEveryMs = 60_000;

type Rejection = 'token' | 'replay' | 'clock';

export interface AuthenticatedBusOptions {
  readonly token: string;
  readonly cluster: string;
  /** Receives at most one line a minute about messages that are ignored. */
  log(message: string): void;
  /** Wall-clock time in milliseconds. */
  readonly now?: () => number;
}

export class AuthenticatedBus implements Bus {
  readonly records: AuthenticatedRecords;
  readonly snapshots: AuthenticatedSnapshots;
  readonly durable: boolean;
  readonly #inner: Bus;
  readonly #key: Buffer;
  readonly #sender = randomBytes(senderBytes);
  readonly #log: (message: string) => void;
  readonly #now: () => number;
  /** By sender: the highest number received by any subscription. A later subscription accepts none before it. */
  readonly #highest = new Map<string, number>();
  #published = 0;
  #loggedMs = Number.NEGATIVE_INFINITY;

  constructor(inner: Bus, { token, cluster, log, now = Date.now }: AuthenticatedBusOptions) {
    this.#inner = inner;
    this.#key = createHash('sha256').update(`kvasir bus 1\0${cluster}\0${token}`).digest();
    this.#log = log;
    this.#now = now;
    this.records = new AuthenticatedRecords(inner.records, 'records', { key: this.#key, now });
    this.snapshots = new AuthenticatedSnapshots(inner.snapshots, 'snapshots', { key: this.#key, now });
    this.durable = inner.durable;
  }

  publish(subject: Subject, payload: Uint8Array): void {
    const message = Buffer.allocUnsafe(headBytes + payload.length);
    this.#sender.copy(message, macBytes);
    message.writeDoubleLE(++this.#published, macBytes + senderBytes);
    message.writeDoubleLE(this.#now(), macBytes + senderBytes + 8);
    message.set(payload, headBytes);
    this.#macOf(subject, message).copy(message, 0, 0, macBytes);
    this.#inner.publish(subject, message);
  }

  subscribe(subject: Subject, handler: (payload: Uint8Array, subject: Subject) => void): () => void {
    const windows = new Map<string, NumberWindow>();
    const before = new Map(this.#highest);
    return this.#inner.subscribe(subject, (bytes, on) => {
      const message = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      const rejection = this.#check(message, on, windows, before);
      if (rejection === undefined) handler(new Uint8Array(message.subarray(headBytes)), on);
      else this.#logRejection(rejection, on);
    });
  }

  /** Calls for every message on the subject, also for those that `subscribe` ignores. */
  observe(subject: Subject, onMessage: () => void): () => void {
    return this.#inner.subscribe(subject, onMessage);
  }

  flush(): Promise<void> {
    return this.#inner.flush();
  }

  watchConnection(onChange: (up: boolean) => void): () => void {
    return this.#inner.watchConnection(onChange);
  }

  close(): Promise<void> {
    return this.#inner.close();
  }

  #macOf(subject: Subject, message: Buffer): Buffer {
    return createHmac('sha256', this.#key).update(`${subject}\0`).update(message.subarray(macBytes)).digest();
  }

  #check(
    message: Buffer,
    subject: Subject,
    windows: Map<string, NumberWindow>,
    before: ReadonlyMap<string, number>,
  ): Rejection | undefined {
    if (message.length < headBytes) return 'token';
    const mac = this.#macOf(subject, message).subarray(0, macBytes);
    if (!timingSafeEqual(mac, message.subarray(0, macBytes))) return 'token';
    if (Math.abs(this.#now() - message.readDoubleLE(macBytes + senderBytes + 8)) > ageMsMax) return 'clock';
    const sender = message.toString('latin1', macBytes, macBytes + senderBytes);
    const number = message.readDoubleLE(macBytes + senderBytes);
    let window = windows.get(sender);
    if (window === undefined) {
      this.#forgetSilent(windows);
      window = new NumberWindow(before.get(sender) ?? 0);
      windows.set(sender, window);
    }
    if (!window.accepts(number)) return 'replay';
    window.usedMs = this.#now();
    this.#highest.set(sender, Math.max(number, this.#highest.get(sender) ?? 0));
    return undefined;
  }

  /** Removes the windows of senders, such as processes that have ended, all of whose messages are too old by now. */
  #forgetSilent(windows: Map<string, NumberWindow>): void {
    const silentMs = this.#now() - 2 * ageMsMax;
    for (const [sender, { usedMs }] of windows) if (usedMs < silentMs) windows.delete(sender);
  }

  #logRejection(rejection: Rejection, subject: Subject): void {
    if (this.#now() - this.#loggedMs < logEveryMs) return;
    this.#loggedMs = this.#now();
    const why = {
      token: 'they do not have the token of this process: all processes of a cluster need the same --token',
      replay: 'they arrived before: another client of NATS repeats them',
      clock: `they are older or newer than ${ageMsMax / 1000} s: the clocks of the hosts differ, or another client of NATS repeats them`,
    }[rejection];
    this.#log(`Ignored messages on ${subject.split('.')[0]}: ${why}`);
  }
}

/** Accepts each number once, if it is not far below the highest one. */
class NumberWindow {
  readonly #accepted = new Float64Array(windowSize);
  readonly #floor: number;
  #highest: number;
  /** When it last accepted a number. */
  usedMs = 0;

  /** @param floor numbers up to it are refused */
  constructor(floor: number) {
    this.#floor = floor;
    this.#highest = floor;
  }

  accepts(number: number): boolean {
    if (!(number > this.#floor) || number <= this.#highest - windowSize) return false;
    const place = number % windowSize;
    if (this.#accepted[place] === number) return false;
    this.#accepted[place] = number;
    this.#highest = Math.max(this.#highest, number);
    return true;
  }
}
