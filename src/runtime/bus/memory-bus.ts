// A bus inside one process across its threads: the endpoint of one thread.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { assertNever } from '../../util/assert-never.ts';
import { type Bus, checkSubject, type Records, type Snapshots, type Subject } from './bus.ts';
import { compact, type RecordRequest, recordsClient } from './memory-records.ts';

/** The connection to another endpoint. */
export interface PeerPort {
  readonly id: number;
  readonly port: MessagePort;
  /** The other endpoint's backlog. */
  readonly backlog: Backlog;
}

/** One element: the bytes sent to an endpoint and not yet read by it. Senders never wait for it to fall. */
export type Backlog = Int32Array<SharedArrayBuffer>;

/** What a thread needs to create its endpoint; transferable. */
export interface BusEndpoint {
  /** One Int32 that all endpoints share: the logical clock that counts publications. */
  readonly clock: SharedArrayBuffer;
  /** The endpoint's own backlog. */
  readonly backlog: Backlog;
  readonly hub: MessagePort;
  readonly peers: readonly PeerPort[];
}

/** To the hub. */
export interface RecordCall {
  readonly call: number;
  readonly request: RecordRequest;
}

/** From the hub. */
export type HubMessage =
  | ({ readonly kind: 'joined' } & PeerPort)
  | { readonly kind: 'left'; readonly id: number }
  | { readonly kind: 'response'; readonly call: number; readonly result: unknown };

interface Message {
  /** Logical time of the publication; the clock wraps around. */
  readonly at: number;
  readonly subject: Subject;
  readonly payload: Uint8Array;
}

/** Between endpoints. */
type EndpointMessage =
  | Message
  /** The first message on a port: all current subscriptions. */
  | { readonly kind: 'subscriptions'; readonly patterns: readonly Subject[] }
  | { readonly kind: 'subscribe'; readonly pattern: Subject }
  | { readonly kind: 'unsubscribe'; readonly pattern: Subject }
  | { readonly kind: 'ping' }
  | { readonly kind: 'pong' };

interface Peer extends Pick<PeerPort, 'port' | 'backlog'> {
  readonly interests: SubjectFilter;
  /** Publications kept until the peer's subscriptions have arrived; undefined once they have. */
  pending: Message[] | undefined;
  /** The message read last from the port, until it is handled. */
  current: EndpointMessage | undefined;
  /** Callbacks of `flush` calls that wait for pongs, in order. */
  readonly onPong: (() => void)[];
}

interface Subscription {
  readonly pattern: Subject;
  readonly words: readonly string[];
  readonly handler: Parameters<Bus['subscribe']>[1];
  cancelled: boolean;
}

interface PendingCall {
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/**
 * Delivery is causally ordered: publications of one endpoint arrive in order, and a publication that follows a delivery is delivered after it
 * everywhere. A subscription is effective for every publication that causally follows it. All publications of a dropped endpoint are
 * delivered before any publication that causally follows the drop.
 */
export class MemoryBus implements Bus {
  readonly records: Records = recordsClient('records', (request) => this.#request(request));
  readonly snapshots: Snapshots = recordsClient('snapshots', (request) => this.#request(request));
  readonly durable = true;
  readonly #hub: MessagePort;
  readonly #clock: Int32Array;
  readonly #backlog: Backlog;
  readonly #peers = new Map<number, Peer>();
  readonly #subscriptions = new Set<Subscription>();
  readonly #interests = new SubjectFilter();
  readonly #watchers = new Set<(up: boolean) => void>();
  readonly #calls = new Map<number, PendingCall>();
  /** Received, or published here, and not yet delivered; ordered by logical time. */
  readonly #queue: Message[] = [];
  #deliveryScheduled = false;
  #callCount = 0;
  #closed = false;

  /** Keeps its thread alive until it is closed. */
  constructor({ clock, backlog, hub, peers }: BusEndpoint) {
    this.#hub = hub;
    this.#backlog = backlog;
    this.#clock = new Int32Array(clock);
    hub.on('message', (message: HubMessage) => {
      this.#handleHub(message);
      this.#deliver();
    });
    for (const peer of peers) this.#join(peer);
  }

  publish(subject: Subject, payload: Uint8Array): void {
    checkSubject(subject, false);
    if (this.#closed) return;
    // Reads every join and subscription that causally precedes this publication.
    this.#readPorts();
    const at = Atomics.add(this.#clock, 0, 1);
    const message = { at, subject, payload: compact(payload) };
    for (const peer of this.#peers.values()) {
      if (peer.pending !== undefined) peer.pending.push({ at, subject, payload: new Uint8Array(payload) });
      else if (peer.interests.has(subject)) send(peer, message);
    }
    if (this.#interests.has(subject)) this.#enqueue({ at, subject, payload: new Uint8Array(payload) });
    this.#scheduleDelivery();
  }

  subscribe(subject: Subject, handler: Subscription['handler']): () => void {
    checkSubject(subject, true);
    if (this.#closed) return () => {};
    const subscription: Subscription = { pattern: subject, words: subject.split('.'), handler, cancelled: false };
    if (!this.#isSubscribed(subject)) {
      this.#interests.add(subject);
      this.#broadcast({ kind: 'subscribe', pattern: subject });
    }
    this.#subscriptions.add(subscription);
    return () => {
      subscription.cancelled = true;
      if (!this.#subscriptions.delete(subscription) || this.#isSubscribed(subject)) return;
      this.#interests.remove(subject);
      this.#broadcast({ kind: 'unsubscribe', pattern: subject });
    };
  }

  /** Delivers synchronously what has arrived, for a thread that does not return to its event loop. */
  drain(): void {
    if (this.#closed) return;
    this.#readPorts();
    this.#deliver();
  }

  async flush(): Promise<void> {
    if (this.#closed) throw new Error('Cannot flush the bus: it is closed');
    this.#readPorts();
    this.#scheduleDelivery();
    const pongs = Array.from(this.#peers.values(), ({ port, onPong }) => {
      port.postMessage({ kind: 'ping' } satisfies EndpointMessage);
      return new Promise<void>((resolve) => onPong.push(resolve));
    });
    await Promise.all(pongs);
  }

  watchConnection(onChange: (up: boolean) => void): () => void {
    this.#watchers.add(onChange);
    onChange(!this.#closed);
    return () => this.#watchers.delete(onChange);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    // Delivers earlier local publications first.
    await Promise.resolve();
    if (this.#closed) return;
    this.#closed = true;
    this.#hub.close();
    for (const id of [...this.#peers.keys()]) this.#leave(id);
    for (const { reject } of this.#calls.values()) reject(closedError());
    for (const onChange of this.#watchers) onChange(false);
  }

  #isSubscribed(pattern: Subject): boolean {
    for (const subscription of this.#subscriptions) if (subscription.pattern === pattern) return true;
    return false;
  }

  #broadcast(message: EndpointMessage): void {
    for (const { port } of this.#peers.values()) port.postMessage(message);
  }

  #join({ id, port, backlog }: PeerPort): void {
    const peer: Peer = { port, backlog, interests: new SubjectFilter(), pending: [], current: undefined, onPong: [] };
    this.#peers.set(id, peer);
    port.on('message', (message: EndpointMessage) => {
      this.#receive(peer, message);
      this.#readPorts();
      this.#deliver();
    });
    // A closing port must not be read.
    port.on('close', () => this.#leave(id));
    // Only the port to the hub keeps the thread alive.
    port.unref();
    const patterns = new Set(Array.from(this.#subscriptions, ({ pattern }) => pattern));
    port.postMessage({ kind: 'subscriptions', patterns: [...patterns] } satisfies EndpointMessage);
  }

  #leave(id: number): void {
    const peer = this.#peers.get(id);
    if (peer === undefined) return;
    this.#peers.delete(id);
    peer.port.close();
    for (const resolve of peer.onPong) resolve();
  }

  /** Reads until all ports are empty, so that everything that causally precedes a message read here has been read too. */
  #readPorts(): void {
    for (let more = true; more; ) {
      this.#readHub();
      more = false;
      for (const peer of this.#peers.values()) more = this.#readPeer(peer) || more;
    }
  }

  #readHub(): void {
    for (let got = receiveMessageOnPort(this.#hub); got !== undefined; got = receiveMessageOnPort(this.#hub))
      this.#handleHub(got.message as HubMessage);
  }

  /** Returns whether a message was read. */
  #readPeer(peer: Peer): boolean {
    let any = false;
    for (let got = receiveMessageOnPort(peer.port); got !== undefined; got = receiveMessageOnPort(peer.port)) {
      this.#receive(peer, got.message as EndpointMessage);
      any = true;
    }
    return any;
  }

  /** Inserts by logical time, because ports are read one after another. */
  #enqueue(message: Message): void {
    const queue = this.#queue;
    let place = queue.length;
    // The difference is correct across a wrap of the clock.
    while (place > 0 && ((queue[place - 1].at - message.at) | 0) > 0) place--;
    queue.splice(place, 0, message);
  }

  /** Reads the hub first: joins and drops may causally precede the message. */
  #receive(peer: Peer, message: EndpointMessage): void {
    peer.current = message;
    this.#readHub();
    this.#handleCurrent(peer);
  }

  #handleCurrent(peer: Peer): void {
    const { current } = peer;
    peer.current = undefined;
    if (current !== undefined) this.#handlePeer(peer, current);
  }

  #handleHub(message: HubMessage): void {
    switch (message.kind) {
      case 'joined':
        this.#join(message);
        break;
      case 'left': {
        const peer = this.#peers.get(message.id);
        if (peer === undefined) break;
        // The messages that it sent before it was dropped.
        this.#handleCurrent(peer);
        this.#readPeer(peer);
        this.#leave(message.id);
        break;
      }
      case 'response':
        this.#calls.get(message.call)?.resolve(message.result);
        this.#calls.delete(message.call);
        break;
      default:
        assertNever(message);
    }
  }

  #handlePeer(peer: Peer, message: EndpointMessage): void {
    if (!('kind' in message)) {
      Atomics.sub(this.#backlog, 0, bytesOf(message));
      this.#enqueue(message);
      return;
    }
    switch (message.kind) {
      case 'subscriptions':
        this.#onSubscriptions(peer, message.patterns);
        break;
      case 'subscribe':
        peer.interests.add(message.pattern);
        break;
      case 'unsubscribe':
        peer.interests.remove(message.pattern);
        break;
      case 'ping':
        peer.port.postMessage({ kind: 'pong' } satisfies EndpointMessage);
        break;
      case 'pong':
        peer.onPong.shift()?.();
        break;
      default:
        assertNever(message);
    }
  }

  #onSubscriptions(peer: Peer, patterns: readonly Subject[]): void {
    for (const pattern of patterns) peer.interests.add(pattern);
    const pending = peer.pending ?? [];
    peer.pending = undefined;
    for (const message of pending) if (peer.interests.has(message.subject)) send(peer, message);
  }

  #scheduleDelivery(): void {
    if (this.#deliveryScheduled || this.#queue.length === 0) return;
    this.#deliveryScheduled = true;
    queueMicrotask(() => {
      this.#deliveryScheduled = false;
      this.#deliver();
    });
  }

  /** Re-entrant: a handler may call `drain`, which delivers the rest of the queue. */
  #deliver(): void {
    for (let next = this.#queue.shift(); next !== undefined && !this.#closed; next = this.#queue.shift()) {
      const { subject, payload } = next;
      const words = subject.split('.');
      const matching = [...this.#subscriptions].filter(
        (subscription) => subscription.pattern === subject || matches(subscription.words, words),
      );
      for (const [i, subscription] of matching.entries())
        if (!subscription.cancelled)
          subscription.handler(i + 1 === matching.length ? payload : payload.slice(), subject);
    }
  }

  async #request(request: RecordRequest): Promise<unknown> {
    if (this.#closed) throw closedError();
    const call = this.#callCount++;
    this.#hub.postMessage({ call, request } satisfies RecordCall);
    return new Promise((resolve, reject) => this.#calls.set(call, { resolve, reject }));
  }
}

/** Estimated size of a message without its payload. */
const messageBytes = 256;

function bytesOf({ payload }: Message): number {
  return messageBytes + payload.length;
}

function send({ port, backlog }: Peer, message: Message): void {
  Atomics.add(backlog, 0, bytesOf(message));
  port.postMessage(message satisfies EndpointMessage);
}

function closedError(): Error {
  return new Error('Cannot use the bus: it is closed');
}

/** The subscriptions of one endpoint: exact subjects, and patterns with wildcards. */
class SubjectFilter {
  readonly #exact = new Set<Subject>();
  readonly #patterns = new Map<Subject, readonly string[]>();

  add(pattern: Subject): void {
    const words = pattern.split('.');
    if (words.some((word) => word === '*' || word === '>')) this.#patterns.set(pattern, words);
    else this.#exact.add(pattern);
  }

  remove(pattern: Subject): void {
    this.#exact.delete(pattern);
    this.#patterns.delete(pattern);
  }

  has(subject: Subject): boolean {
    if (this.#exact.has(subject)) return true;
    if (this.#patterns.size === 0) return false;
    const words = subject.split('.');
    for (const pattern of this.#patterns.values()) if (matches(pattern, words)) return true;
    return false;
  }
}

function matches(pattern: readonly string[], words: readonly string[]): boolean {
  for (const [i, expected] of pattern.entries()) {
    if (expected === '>') return words.length > i;
    if (i >= words.length || (expected !== '*' && expected !== words[i])) return false;
  }
  return pattern.length === words.length;
}
