// Requests between the gateways of one cluster: the gateway that has a file, batch or context answers, in pieces that
// the other one pulls. Each call waits for one message at a time, and every wait has a time-out.

import type { LossReason } from '../../core/membership/liveness.ts';
import type { ForwardedRequest, ForwardedResponse, GatewayPeers, SharedUsage } from '../../core/protocol/ports.ts';
import { assertNever } from '../../util/assert-never.ts';
import { encode } from '../wire/codec.ts';
import {
  type ForwardAnswer,
  type ForwarderAnnouncement,
  type ForwardWire,
  pieceBytesMax,
  readForward,
  readForwarder,
  readUsage,
  usageEntries,
} from '../wire/forward-messages.ts';
import { type ClusterProcess, type Peer, type PeerHandler, PeerSession } from './peer-session.ts';

/** A gateway that does not answer a call for this time has failed it. */
const answerMs = 10_000;
/** A response of which no further piece is pulled for this time is dropped. */
const pullMs = 30_000;
/** Calls of one gateway that another one answers at once; those of one owner are at most as many as are free. */
const callsMax = 64;
/** Lost gateways whose names are remembered. */
const lostMax = 256;

const noUsage: SharedUsage = { charged: [], open: [] };

type Forwarder = Peer<ForwarderAnnouncement>;
type AnswerForwarded = Parameters<GatewayPeers['onRequest']>[0];

/** A call of this gateway that waits for a message. */
interface WaitingCall {
  readonly to: Forwarder;
  readonly timer: NodeJS.Timeout;
  resolve(answer: ForwardAnswer): void;
  reject(error: Error): void;
}

/** A call of another gateway. */
interface ServedCall {
  /** Of the data that it reaches. */
  readonly owner: string;
  /** Aborted when its gateway does not wait for it any more. */
  readonly cancel: AbortController;
  /** Undefined until the response has begun. */
  pieces: Pieces | undefined;
  timer: NodeJS.Timeout | undefined;
}

export class GatewayLinks implements PeerHandler<ForwarderAnnouncement>, GatewayPeers {
  readonly key: string;
  readonly #session: PeerSession<ForwarderAnnouncement>;
  /** By key: the last one that joined. */
  readonly #peers = new Map<string, Forwarder>();
  /** By key: gateways that were connected, and why they are not now. */
  readonly #lost = new Map<string, string>();
  readonly #waiting = new Map<number, WaitingCall>();
  readonly #served = new Map<Forwarder, Map<number, ServedCall>>();
  /** Answered calls that the gateway may still cancel. */
  readonly #answered = new WeakMap<Forwarder, Map<number, AbortController>>();
  readonly readAnnouncement = readForwarder;
  #calls = 0;
  #answer: AnswerForwarded | undefined;
  #ownUsage: () => SharedUsage = () => noUsage;
  #onUsage: (from: object, usage: SharedUsage) => void = () => {};

  constructor(process: ClusterProcess, key: string) {
    this.key = key;
    this.#session = new PeerSession(process, 'forwarder', this);
    this.#session.start();
  }

  close(): void {
    for (const peer of this.#served.keys()) this.#drop(peer);
    this.#session.close();
    for (const { reject, timer } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(new Error('this gateway stops'));
    }
    this.#waiting.clear();
  }

  keys(): readonly string[] {
    return [...this.#peers.keys()];
  }

  onRequest(answer: AnswerForwarded): void {
    this.#answer = answer;
  }

  shareUsage(own: () => SharedUsage, onOther: (from: object, usage: SharedUsage) => void): void {
    this.#ownUsage = own;
    this.#onUsage = onOther;
  }

  /** With each ack: counts since some time, so that a lost one is repeated by the next. */
  status(): Uint8Array {
    return encode(usageEntries(this.#ownUsage()));
  }

  onStatus(peer: Forwarder, bytes: Uint8Array): void {
    // A gateway of an earlier release sends none.
    if (bytes.length > 0) this.#onUsage(peer, readUsage(bytes));
  }

  async send(key: string, request: ForwardedRequest): Promise<ForwardedResponse | string> {
    const to = this.#peers.get(key);
    if (to === undefined) return this.#lost.get(key) ?? `gateway ${key} is not in the cluster`;
    const call = ++this.#calls;
    try {
      const answer = await this.#exchange(to, { kind: 'request', call, ...request });
      if (answer.kind === 'refused') return `${describe(to)}: ${answer.why}`;
      if (answer.kind === 'piece') return `${describe(to)} sent a piece before its response`;
      return { status: answer.status, headers: answer.headers, body: this.#pull(to, answer) };
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  announcement(): Pick<ForwarderAnnouncement, 'key'> {
    return { key: this.key };
  }

  refuses({ key }: ForwarderAnnouncement): string | undefined {
    return key === this.key ? `it has the key ${key} of this gateway: its data folder is a copy` : undefined;
  }

  onJoined(peer: Forwarder): void {
    const { key } = peer.member;
    this.#lost.delete(key);
    this.#peers.set(key, peer);
    this.#served.set(peer, new Map());
  }

  onLost(peer: Forwarder, why: LossReason): void {
    const { key } = peer.member;
    this.#drop(peer);
    this.#onUsage(peer, noUsage);
    if (this.#peers.get(key) === peer) {
      this.#peers.delete(key);
      this.#lost.set(key, `${describe(peer)} is not in the cluster any more: it ${lossText[why]}`);
      const [oldest] = this.#lost.keys();
      if (this.#lost.size > lostMax && oldest !== undefined) this.#lost.delete(oldest);
    }
    for (const [call, { to, reject }] of this.#waiting)
      if (to === peer && this.#settle(call)) reject(new Error(`${describe(to)} ${lossText[why]}`));
  }

  onMessage(peer: Forwarder, bytes: Uint8Array): void {
    const message = readForward(bytes);
    switch (message.kind) {
      case 'request':
        void this.#serve(peer, message);
        break;
      case 'next':
        void this.#sendPiece(peer, message.call);
        break;
      case 'cancel':
        this.#cancel(peer, message.call);
        break;
      case 'response':
      case 'piece':
      case 'refused': {
        const waiting = this.#waiting.get(message.call);
        // The call has timed out, or is of another gateway.
        if (waiting?.to === peer && this.#settle(message.call)) waiting.resolve(message);
        break;
      }
      default:
        assertNever(message);
    }
  }

  /** Sends a message of a call and waits for its answer. @throws Error in one line that names the gateway */
  #exchange(to: Forwarder, message: Extract<ForwardWire, { kind: 'request' | 'next' }>): Promise<ForwardAnswer> {
    const { call } = message;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#settle(call);
        this.#send(to, { kind: 'cancel', call });
        reject(new Error(`${describe(to)} does not answer for ${answerMs / 1000} s`));
      }, answerMs);
      this.#waiting.set(call, { to, timer, resolve, reject });
      this.#send(to, message);
    });
  }

  /** Returns false if the call waits no more. */
  #settle(call: number): boolean {
    const waiting = this.#waiting.get(call);
    clearTimeout(waiting?.timer);
    return this.#waiting.delete(call);
  }

  /** The pieces of a response; the next one is requested when it is read. */
  #pull(to: Forwarder, first: Extract<ForwardAnswer, { kind: 'response' }>): AsyncIterable<Uint8Array> {
    const { call } = first;
    let unread: Uint8Array | undefined = first.bytes;
    let isLast = first.last;
    const next = async (): Promise<IteratorResult<Uint8Array>> => {
      if (unread === undefined && isLast) return { done: true, value: undefined };
      if (unread === undefined) {
        const answer = await this.#exchange(to, { kind: 'next', call });
        if (answer.kind !== 'piece')
          throw new Error(`${describe(to)}: ${answer.kind === 'refused' ? answer.why : 'its response begins again'}`);
        ({ bytes: unread, last: isLast } = answer);
      }
      const value = unread;
      unread = undefined;
      return { done: false, value };
    };
    const end = async (): Promise<IteratorResult<Uint8Array>> => {
      if (!isLast) this.#send(to, { kind: 'cancel', call });
      isLast = true;
      unread = undefined;
      return { done: true, value: undefined };
    };
    return { [Symbol.asyncIterator]: () => ({ next, return: end }) };
  }

  async #serve(peer: Forwarder, { call, ...request }: Extract<ForwardWire, { kind: 'request' }>): Promise<void> {
    const calls = this.#served.get(peer);
    if (calls === undefined) return;
    const refuse = (why: string): void => this.#send(peer, { kind: 'refused', call, why });
    // A second response would take the place of the first, which then has no owner.
    if (calls.has(call)) {
      refuse(`call ${call} is not new`);
      return;
    }
    const ofOwner = [...calls.values()].filter(({ owner }) => owner === request.owner).length;
    // However slowly one tenant reads its files, the others have calls left.
    if (ofOwner >= callsMax - calls.size) {
      refuse(`it answers ${calls.size} requests of this gateway already, ${ofOwner} of them of this API key`);
      return;
    }
    const cancel = new AbortController();
    const own: ServedCall = { owner: request.owner, cancel, pieces: undefined, timer: undefined };
    calls.set(call, own);
    try {
      if (this.#answer === undefined) throw new Error('it starts');
      const { status, headers, body } = await this.#answer(request, cancel.signal);
      const pieces = new Pieces(body);
      const piece = await pieces.next();
      // The call was cancelled, or its gateway lost.
      if (calls.get(call) !== own) return pieces.close();
      own.pieces = pieces;
      if (piece.last && request.method === 'POST') this.#remember(peer, call, cancel);
      this.#afterPiece(peer, call, piece.last);
      this.#send(peer, { kind: 'response', call, status, headers, ...piece });
    } catch (error) {
      this.#end(peer, call);
      refuse(`it cannot answer: ${error instanceof Error ? error.message.slice(0, 256) : String(error)}`);
    }
  }

  async #sendPiece(peer: Forwarder, call: number): Promise<void> {
    const { pieces } = this.#served.get(peer)?.get(call) ?? {};
    if (pieces === undefined) {
      this.#send(peer, { kind: 'refused', call, why: 'the response has ended' });
      return;
    }
    try {
      const piece = await pieces.next();
      this.#afterPiece(peer, call, piece.last);
      this.#send(peer, { kind: 'piece', call, ...piece });
    } catch (error) {
      this.#end(peer, call);
      this.#send(peer, { kind: 'refused', call, why: error instanceof Error ? error.message.slice(0, 256) : 'failed' });
    }
  }

  #afterPiece(peer: Forwarder, call: number, last: boolean): void {
    const own = this.#served.get(peer)?.get(call);
    if (own === undefined) return;
    clearTimeout(own.timer);
    if (last) this.#end(peer, call);
    else own.timer = setTimeout(() => this.#end(peer, call), pullMs).unref();
  }

  /** A gateway cancels after the whole answer if that came too late. */
  #remember(peer: Forwarder, call: number, cancel: AbortController): void {
    const answered = this.#answered.get(peer) ?? new Map<number, AbortController>();
    this.#answered.set(peer, answered.set(call, cancel));
    setTimeout(() => answered.delete(call), pullMs).unref();
  }

  /** What a response that nothing reads would have caused is undone, or does not begin. */
  #cancel(peer: Forwarder, call: number): void {
    const own = this.#served.get(peer)?.get(call);
    // A response that has begun may be read no further.
    if (own?.pieces === undefined) (own?.cancel ?? this.#answered.get(peer)?.get(call))?.abort();
    this.#end(peer, call);
  }

  /** Ends a call of another gateway; without effect if it has ended. */
  #end(peer: Forwarder, call: number): void {
    const calls = this.#served.get(peer);
    const own = calls?.get(call);
    calls?.delete(call);
    clearTimeout(own?.timer);
    own?.pieces?.close();
  }

  #drop(peer: Forwarder): void {
    for (const call of this.#served.get(peer)?.keys() ?? []) this.#cancel(peer, call);
    this.#served.delete(peer);
  }

  #send(to: Forwarder, message: ForwardWire): void {
    this.#session.send(to, encode(message));
  }
}

const lossText: Readonly<Record<LossReason, string>> = {
  left: 'has left',
  'sent no heartbeat': 'sent no heartbeat',
  restarted: 'has restarted',
  'lost messages': 'lost messages',
};

function describe({ member: { name, key } }: Forwarder): string {
  return `gateway ${name} (${key})`;
}

/** A body in pieces of bounded length. */
class Pieces {
  readonly #chunks: AsyncIterator<Uint8Array>;
  /** The rest of the current chunk; undefined: the body has ended. */
  #rest: Uint8Array | undefined = new Uint8Array();

  constructor(body: AsyncIterable<Uint8Array>) {
    this.#chunks = body[Symbol.asyncIterator]();
  }

  async next(): Promise<{ readonly bytes: Uint8Array; readonly last: boolean }> {
    await this.#fill();
    const bytes = this.#rest?.subarray(0, pieceBytesMax) ?? new Uint8Array();
    this.#rest = this.#rest?.subarray(bytes.length);
    await this.#fill();
    return { bytes, last: this.#rest === undefined };
  }

  /** Frees the body. */
  close(): void {
    this.#rest = undefined;
    void this.#chunks.return?.().then(undefined, () => {});
  }

  async #fill(): Promise<void> {
    while (this.#rest?.length === 0) {
      const { done, value } = await this.#chunks.next();
      // Messages have plain arrays, not Buffers.
      this.#rest = done === true ? undefined : new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    }
  }
}
