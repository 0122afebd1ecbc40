// A bus inside one process, over all of its threads: one end of it, on the thread that made it.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { type Bus, checkSubject, type Records, type Snapshots, type Subject } from './bus.ts';
import { askedRecords, type RecordAsk, tight } from './memory-records.ts';
import { matches, SubjectFilter } from './subject-filter.ts';

/** The way to another end. */
export interface Way {
  readonly seat: number;
  readonly port: MessagePort;
  /** Of that end. */
  readonly backlog: Backlog;
}

/** One word: bytes that others have said to an end and that it has not read. Nobody is made to wait by it. */
export type Backlog = Int32Array<SharedArrayBuffer>;

/** What a hub deals a thread. */
export interface Seat {
  /** One word that all ends share: counts what is said. */
  readonly clock: SharedArrayBuffer;
  /** Its own. */
  readonly backlog: Backlog;
  readonly hub: MessagePort;
  readonly peers: readonly Way[];
}

/** To the hub. */
export interface RecordCall {
  readonly call: number;
  readonly ask: RecordAsk;
}

/** From the hub. */
export type HubWire =
  | ({ readonly kind: 'joined' } & Way)
  | { readonly kind: 'left'; readonly seat: number }
  | { readonly kind: 'answer'; readonly call: number; readonly answer: unknown };

interface Message {
  /** By the clock of the bus, which goes round. */
  readonly at: number;
  readonly subject: Subject;
  readonly payload: Uint8Array;
}

/** From end to end. */
type EndWire =
  | Message
  /** First of all: what is listened to. */
  | { readonly kind: 'greeting'; readonly patterns: readonly Subject[] }
  | { readonly kind: 'hears'; readonly pattern: Subject }
  | { readonly kind: 'hearsNoMore'; readonly pattern: Subject }
  | { readonly kind: 'ping' }
  | { readonly kind: 'pong' };

interface Peer extends Pick<Way, 'port' | 'backlog'> {
  readonly interests: SubjectFilter;
  /** What it will hear, if it wants to, once it has said what it wants; undefined: it has. */
  waiting: Message[] | undefined;
  /** What was read from its port last, until it is taken. */
  inHand: EndWire | undefined;
  /** Those who wait for its pongs, in order. */
  readonly pings: (() => void)[];
}

interface Listener {
  readonly pattern: Subject;
  readonly words: readonly string[];
  readonly hear: (payload: Uint8Array, subject: Subject) => void;
  gone: boolean;
}

interface Call {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: Error) => void;
}

/**
 * Order: what one end publishes is heard in order by each other one, and what it publishes after it has heard something is heard after that. What
 * is published by somebody who knows, however it was told, that an end listens, reaches it; and all that an end said before it was dropped is heard
 * before anything that is published by one who knows of its end.
 */
export class MemoryBus implements Bus {
  readonly records: Records = askedRecords('records', (ask) => this.#ask(ask));
  readonly snapshots: Snapshots = askedRecords('snapshots', (ask) => this.#ask(ask));
  readonly lasting = true;
  readonly #hub: MessagePort;
  readonly #clock: Int32Array;
  readonly #backlog: Backlog;
  readonly #peers = new Map<number, Peer>();
  readonly #listeners = new Set<Listener>();
  readonly #interests = new SubjectFilter();
  readonly #watchers = new Set<(up: boolean) => void>();
  readonly #calls = new Map<number, Call>();
  /** Read from ports, or said here, and not heard yet. */
  readonly #come: Message[] = [];
  #willDeliver = false;
  #called = 0;
  #closed = false;

  /** Keeps its thread alive until it is closed. */
  constructor({ clock, backlog, hub, peers }: Seat) {
    this.#hub = hub;
    this.#backlog = backlog;
    this.#clock = new Int32Array(clock);
    hub.on('message', (wire: HubWire) => {
      this.#takeHub(wire);
      this.#deliver();
    });
    for (const way of peers) this.#join(way);
  }

  publish(subject: Subject, payload: Uint8Array): void {
    checkSubject(subject, false);
    if (this.#closed) return;
    // Who has come, or begun to listen, before what this thread has heard of.
    this.#read();
    const at = Atomics.add(this.#clock, 0, 1);
    const message = { at, subject, payload: tight(payload) };
    for (const peer of this.#peers.values()) {
      if (peer.waiting !== undefined) peer.waiting.push({ at, subject, payload: new Uint8Array(payload) });
      else if (peer.interests.want(subject)) say(peer, message);
    }
    if (this.#interests.want(subject)) this.#queue({ at, subject, payload: new Uint8Array(payload) });
    this.#deliverSoon();
  }

  subscribe(subject: Subject, hear: Listener['hear']): () => void {
    checkSubject(subject, true);
    if (this.#closed) return () => {};
    const listener: Listener = { pattern: subject, words: subject.split('.'), hear, gone: false };
    if (!this.#listensTo(subject)) {
      this.#interests.add(subject);
      this.#sayAll({ kind: 'hears', pattern: subject });
    }
    this.#listeners.add(listener);
    return () => {
      listener.gone = true;
      if (!this.#listeners.delete(listener) || this.#listensTo(subject)) return;
      this.#interests.remove(subject);
      this.#sayAll({ kind: 'hearsNoMore', pattern: subject });
    };
  }

  /** Listeners hear now what has come, though the thread has not returned to its event loop. */
  drain(): void {
    if (this.#closed) return;
    this.#read();
    this.#deliver();
  }

  async flush(): Promise<void> {
    if (this.#closed) throw new Error('Cannot flush the bus: it is closed');
    this.#read();
    this.#deliverSoon();
    const answered = Array.from(this.#peers.values(), ({ port, pings }) => {
      port.postMessage({ kind: 'ping' } satisfies EndWire);
      return new Promise<void>((resolve) => pings.push(resolve));
    });
    await Promise.all(answered);
  }

  watch(tell: (up: boolean) => void): () => void {
    this.#watchers.add(tell);
    tell(!this.#closed);
    return () => this.#watchers.delete(tell);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    // What was said here before is heard first.
    await Promise.resolve();
    if (this.#closed) return;
    this.#closed = true;
    this.#hub.close();
    for (const seat of [...this.#peers.keys()]) this.#leave(seat);
    for (const { reject } of this.#calls.values()) reject(closedError());
    for (const tell of this.#watchers) tell(false);
  }

  #listensTo(pattern: Subject): boolean {
    for (const listener of this.#listeners) if (listener.pattern === pattern) return true;
    return false;
  }

  #sayAll(wire: EndWire): void {
    for (const { port } of this.#peers.values()) port.postMessage(wire);
  }

  #join({ seat, port, backlog }: Way): void {
    const peer: Peer = { port, backlog, interests: new SubjectFilter(), waiting: [], inHand: undefined, pings: [] };
    this.#peers.set(seat, peer);
    port.on('message', (wire: EndWire) => {
      this.#receive(peer, wire);
      this.#read();
      this.#deliver();
    });
    // A port that is closing is not to be read.
    port.on('close', () => this.#leave(seat));
    // The one to the hub keeps the thread alive.
    port.unref();
    const patterns = new Set(Array.from(this.#listeners, ({ pattern }) => pattern));
    port.postMessage({ kind: 'greeting', patterns: [...patterns] } satisfies EndWire);
  }

  #leave(seat: number): void {
    const peer = this.#peers.get(seat);
    if (peer === undefined) return;
    this.#peers.delete(seat);
    peer.port.close();
    for (const answered of peer.pings) answered();
  }

  /** What has come over ports: also what was said before something that has been read here, over another one. */
  #read(): void {
    for (let more = true; more; ) {
      this.#readHub();
      more = false;
      for (const peer of this.#peers.values()) more = this.#readPeer(peer) || more;
    }
  }

  #readHub(): void {
    for (let got = receiveMessageOnPort(this.#hub); got !== undefined; got = receiveMessageOnPort(this.#hub))
      this.#takeHub(got.message as HubWire);
  }

  /** Was there anything? */
  #readPeer(peer: Peer): boolean {
    let any = false;
    for (let got = receiveMessageOnPort(peer.port); got !== undefined; got = receiveMessageOnPort(peer.port)) {
      this.#receive(peer, got.message as EndWire);
      any = true;
    }
    return any;
  }

  /** Ports are read one by one: what was said first is heard first. */
  #queue(message: Message): void {
    const come = this.#come;
    let place = come.length;
    // Differences are right also where the clock has gone round.
    while (place > 0 && ((come[place - 1].at - message.at) | 0) > 0) place--;
    come.splice(place, 0, message);
  }

  /** Whoever said it may have known of somebody who came or went. */
  #receive(peer: Peer, wire: EndWire): void {
    peer.inHand = wire;
    this.#readHub();
    this.#takeInHand(peer);
  }

  #takeInHand(peer: Peer): void {
    const { inHand } = peer;
    peer.inHand = undefined;
    if (inHand !== undefined) this.#take(peer, inHand);
  }

  #takeHub(wire: HubWire): void {
    switch (wire.kind) {
      case 'joined':
        this.#join(wire);
        break;
      case 'left': {
        const peer = this.#peers.get(wire.seat);
        if (peer === undefined) break;
        // Its last words.
        this.#takeInHand(peer);
        this.#readPeer(peer);
        this.#leave(wire.seat);
        break;
      }
      case 'answer':
        this.#calls.get(wire.call)?.resolve(wire.answer);
        this.#calls.delete(wire.call);
    }
  }

  #take(peer: Peer, wire: EndWire): void {
    if (!('kind' in wire)) {
      Atomics.sub(this.#backlog, 0, bytesOf(wire));
      this.#queue(wire);
      return;
    }
    switch (wire.kind) {
      case 'greeting':
        this.#greeted(peer, wire.patterns);
        break;
      case 'hears':
        peer.interests.add(wire.pattern);
        break;
      case 'hearsNoMore':
        peer.interests.remove(wire.pattern);
        break;
      case 'ping':
        peer.port.postMessage({ kind: 'pong' } satisfies EndWire);
        break;
      case 'pong':
        peer.pings.shift()?.();
    }
  }

  #greeted(peer: Peer, patterns: readonly Subject[]): void {
    for (const pattern of patterns) peer.interests.add(pattern);
    const waiting = peer.waiting ?? [];
    peer.waiting = undefined;
    for (const message of waiting) if (peer.interests.want(message.subject)) say(peer, message);
  }

  #deliverSoon(): void {
    if (this.#willDeliver || this.#come.length === 0) return;
    this.#willDeliver = true;
    queueMicrotask(() => {
      this.#willDeliver = false;
      this.#deliver();
    });
  }

  /** A listener may drain the bus: it hears the rest then. */
  #deliver(): void {
    for (let next = this.#come.shift(); next !== undefined && !this.#closed; next = this.#come.shift()) {
      const { subject, payload } = next;
      const words = subject.split('.');
      const listeners = [...this.#listeners].filter(
        (listener) => listener.pattern === subject || matches(listener.words, words),
      );
      for (const [i, listener] of listeners.entries())
        if (!listener.gone) listener.hear(i + 1 === listeners.length ? payload : payload.slice(), subject);
    }
  }

  async #ask(ask: RecordAsk): Promise<unknown> {
    if (this.#closed) throw closedError();
    const call = this.#called++;
    this.#hub.postMessage({ call, ask } satisfies RecordCall);
    return new Promise((resolve, reject) => this.#calls.set(call, { resolve, reject }));
  }
}

/** What a message takes besides its payload, about. */
const messageBytes = 256;

function bytesOf({ payload }: Message): number {
  return messageBytes + payload.length;
}

function say({ port, backlog }: Peer, message: Message): void {
  Atomics.add(backlog, 0, bytesOf(message));
  port.postMessage(message satisfies EndWire);
}

function closedError(): Error {
  return new Error('Cannot use the bus: it is closed');
}
