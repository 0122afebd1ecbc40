// A reliable, ordered channel between two processes over a bus that loses, duplicates and reorders messages: numbered
// parts with ack and nack.

import { assertNever } from '../../util/assert-never.ts';

/** A piece of a message. `number`: 1, 2, 3... in each direction. */
export interface ChannelPart {
  readonly number: number;
  /** The last part of its message. */
  readonly last: boolean;
  readonly bytes: Uint8Array;
}

export type ChannelEvent =
  | { readonly kind: 'send'; readonly message: Uint8Array }
  | { readonly kind: 'part'; readonly part: ChannelPart }
  /**
   * Sent at a fixed interval: numbers of the last part sent and of the last one received in order. It shows the loss of
   * a last part too.
   */
  | { readonly kind: 'ack'; readonly sent: number; readonly received: number }
  /** The other side lacks all parts from this number on. */
  | { readonly kind: 'nack'; readonly from: number };

export type ChannelEffect =
  | { readonly kind: 'publish'; readonly part: ChannelPart }
  /** The receiver of the effect owns the bytes. */
  | { readonly kind: 'deliver'; readonly message: Uint8Array }
  /** Send a `nack` to the other side. */
  | { readonly kind: 'nack'; readonly from: number }
  /** The channel has failed for good: both sides must open a new one. */
  | { readonly kind: 'broken'; readonly why: string };

export interface ChannelConfig {
  /** Bytes of one part at most. */
  readonly partBytesMax: number;
  /** Bytes of one received message at most. */
  readonly messageBytesMax: number;
  /** Bytes of unacknowledged parts at most. */
  readonly keptBytesMax: number;
}

export const defaultChannelConfig: ChannelConfig = {
  // A NATS server accepts 1 MiB unless it is configured otherwise.
  partBytesMax: 2 ** 19,
  messageBytesMax: 2 ** 26,
  keptBytesMax: 2 ** 27,
};

/** A nack is repeated after so many further parts: it may be lost itself. */
const nackAfterParts = 16;

/** One end of a channel. Go-back-N: parts after a lost one are dropped, and retransmitted from there on. */
export class ReliableChannel {
  readonly #config: ChannelConfig;
  /** Sent and not acknowledged, oldest first. */
  #unacknowledged: ChannelPart[] = [];
  #unacknowledgedBytes = 0;
  #sent = 0;
  #received = 0;
  /** Received parts of the current message. */
  #parts: Uint8Array[] = [];
  #partsBytes = 0;
  /** Parts received out of order since the last nack; undefined: none is missing. */
  #sinceNack: number | undefined;
  #broken = false;
  #effects: ChannelEffect[] = [];

  constructor(config: ChannelConfig = defaultChannelConfig) {
    this.#config = config;
  }

  /** Numbers of the last part sent, and of the last part received with all before it. */
  get ack(): { readonly sent: number; readonly received: number } {
    return { sent: this.#sent, received: this.#received };
  }

  /** The other side has acknowledged all parts. */
  get isDelivered(): boolean {
    return this.#unacknowledged.length === 0;
  }

  /** Handles one event. The caller performs the effects in order. */
  step(event: ChannelEvent): readonly ChannelEffect[] {
    this.#effects = [];
    if (this.#broken) return this.#effects;
    switch (event.kind) {
      case 'send':
        this.#send(event.message);
        break;
      case 'part':
        this.#receive(event.part);
        break;
      case 'ack':
        this.#acknowledge(event.sent, event.received);
        break;
      case 'nack':
        this.#retransmit(event.from);
        break;
      default:
        assertNever(event);
    }
    return this.#effects;
  }

  #send(message: Uint8Array): void {
    const { partBytesMax, keptBytesMax } = this.#config;
    for (let at = 0; at === 0 || at < message.length; at += partBytesMax) {
      const bytes = message.subarray(at, at + partBytesMax);
      const part = { number: ++this.#sent, last: at + partBytesMax >= message.length, bytes };
      this.#unacknowledged.push(part);
      this.#unacknowledgedBytes += bytes.length;
      this.#effects.push({ kind: 'publish', part });
    }
    if (this.#unacknowledgedBytes > keptBytesMax)
      this.#break(`${this.#unacknowledgedBytes} bytes are not acknowledged, at most ${keptBytesMax} are kept`);
  }

  #receive({ number, last, bytes }: ChannelPart): void {
    // A duplicate.
    if (number <= this.#received) return;
    if (number > this.#received + 1) {
      if (this.#sinceNack === undefined || ++this.#sinceNack === nackAfterParts) this.#nack();
      return;
    }
    this.#received = number;
    this.#sinceNack = undefined;
    this.#partsBytes += bytes.length;
    if (this.#partsBytes > this.#config.messageBytesMax) {
      this.#break(`a message has more than ${this.#config.messageBytesMax} bytes`);
      return;
    }
    this.#parts.push(bytes);
    if (last) this.#effects.push({ kind: 'deliver', message: this.#takeMessage() });
  }

  #takeMessage(): Uint8Array {
    const [first] = this.#parts;
    let message = first ?? new Uint8Array();
    if (this.#parts.length > 1) {
      message = new Uint8Array(this.#partsBytes);
      let at = 0;
      for (const bytes of this.#parts) {
        message.set(bytes, at);
        at += bytes.length;
      }
    }
    this.#parts = [];
    this.#partsBytes = 0;
    return message;
  }

  #acknowledge(sent: number, received: number): void {
    if (received > this.#sent) {
      this.#break(`part ${received} is acknowledged, ${this.#sent} were sent`);
      return;
    }
    this.#drop(received);
    if (sent > this.#received) this.#nack();
  }

  /** Drops the parts up to this number: the other side has them. */
  #drop(received: number): void {
    let dropped = 0;
    for (const { number, bytes } of this.#unacknowledged) {
      if (number > received) break;
      this.#unacknowledgedBytes -= bytes.length;
      dropped++;
    }
    if (dropped > 0) this.#unacknowledged = this.#unacknowledged.slice(dropped);
  }

  #retransmit(from: number): void {
    if (from > this.#sent + 1) {
      this.#break(`part ${from} is requested, ${this.#sent} were sent`);
      return;
    }
    this.#drop(from - 1);
    const first = this.#sent + 1 - this.#unacknowledged.length;
    // Only acknowledged parts are dropped: this nack is late or a duplicate.
    if (from < first) return;
    for (const part of this.#unacknowledged) this.#effects.push({ kind: 'publish', part });
  }

  #nack(): void {
    this.#sinceNack = 0;
    this.#effects.push({ kind: 'nack', from: this.#received + 1 });
  }

  #break(why: string): void {
    this.#broken = true;
    this.#unacknowledged = [];
    this.#parts = [];
    this.#effects.push({ kind: 'broken', why });
  }
}
