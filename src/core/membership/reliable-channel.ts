// What one process tells another, in order and whole, over a bus that loses messages: numbered parts, kept until the other side has them.

/** A piece of a message. `number`: 1, 2, 3... in each direction. */
export interface ChannelPart {
  readonly number: number;
  /** The last one of its message. */
  readonly last: boolean;
  readonly bytes: Uint8Array;
}

export type ChannelEvent =
  | { readonly kind: 'send'; readonly message: Uint8Array }
  | { readonly kind: 'part'; readonly part: ChannelPart }
  /** What the other side has sent and heard, told at equal distances: so that the last part of all is missed, too. */
  | { readonly kind: 'tally'; readonly sent: number; readonly heard: number }
  /** The other side misses all from this number on. */
  | { readonly kind: 'again'; readonly from: number };

export type ChannelEffect =
  | { readonly kind: 'publish'; readonly part: ChannelPart }
  /** The listener's own. */
  | { readonly kind: 'deliver'; readonly message: Uint8Array }
  /** Tell the other side `again`. */
  | { readonly kind: 'ask'; readonly from: number }
  /** It cannot be mended: both sides have to begin anew. The link is good for nothing more. */
  | { readonly kind: 'broken'; readonly why: string };

export interface ChannelConfig {
  /** Of one part. */
  readonly partBytesMax: number;
  /** Of one message that is received. */
  readonly messageBytesMax: number;
  /** Of parts that the other side has not told to have. */
  readonly keptBytesMax: number;
}

export const defaultChannelConfig: ChannelConfig = {
  // A NATS server takes 1 MiB at most unless it is told otherwise.
  partBytesMax: 2 ** 19,
  messageBytesMax: 2 ** 26,
  keptBytesMax: 2 ** 27,
};

/** What was asked for, or the asking, is lost too when so many more have come without it. */
const askAgainParts = 16;

/** One end. After a lost part all that follow it are dropped, and told again from there. */
export class ReliableChannel {
  readonly #config: ChannelConfig;
  /** Sent, and not known to be heard, oldest first. */
  #kept: ChannelPart[] = [];
  #keptBytes = 0;
  #sent = 0;
  #heard = 0;
  /** Of the message that is under way. */
  #parts: Uint8Array[] = [];
  #partsBytes = 0;
  /** Parts that came after one that is missing, since it was asked for; undefined: nothing is missing. */
  #since: number | undefined;
  #broken = false;
  #effects: ChannelEffect[] = [];

  constructor(config: ChannelConfig = defaultChannelConfig) {
    this.#config = config;
  }

  /** Of the last part that was sent, and of the last one that was heard with all before it. */
  get tally(): { readonly sent: number; readonly heard: number } {
    return { sent: this.#sent, heard: this.#heard };
  }

  /** The effects are to be carried out in order. */
  step(event: ChannelEvent): readonly ChannelEffect[] {
    this.#effects = [];
    if (this.#broken) return this.#effects;
    switch (event.kind) {
      case 'send':
        this.#send(event.message);
        break;
      case 'part':
        this.#hear(event.part);
        break;
      case 'tally':
        this.#compare(event.sent, event.heard);
        break;
      case 'again':
        this.#tellAgain(event.from);
        break;
    }
    return this.#effects;
  }

  #send(message: Uint8Array): void {
    const { partBytesMax, keptBytesMax } = this.#config;
    for (let at = 0; at === 0 || at < message.length; at += partBytesMax) {
      const bytes = message.subarray(at, at + partBytesMax);
      const part = { number: ++this.#sent, last: at + partBytesMax >= message.length, bytes };
      this.#kept.push(part);
      this.#keptBytes += bytes.length;
      this.#effects.push({ kind: 'publish', part });
    }
    if (this.#keptBytes > keptBytesMax)
      this.#break(`${this.#keptBytes} bytes were not taken: ${keptBytesMax} are kept`);
  }

  #hear({ number, last, bytes }: ChannelPart): void {
    if (number <= this.#heard) return;
    if (number > this.#heard + 1) {
      if (this.#since === undefined || ++this.#since === askAgainParts) this.#ask();
      return;
    }
    this.#heard = number;
    this.#since = undefined;
    this.#partsBytes += bytes.length;
    if (this.#partsBytes > this.#config.messageBytesMax) {
      this.#break(`a message has more than ${this.#config.messageBytesMax} bytes`);
      return;
    }
    this.#parts.push(bytes);
    if (last) this.#effects.push({ kind: 'deliver', message: this.#whole() });
  }

  #whole(): Uint8Array {
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

  #compare(sent: number, heard: number): void {
    if (heard > this.#sent) {
      this.#break(`part ${heard} was heard, ${this.#sent} were sent`);
      return;
    }
    this.#drop(heard);
    if (sent > this.#heard) this.#ask();
  }

  #drop(heard: number): void {
    let dropped = 0;
    for (const { number, bytes } of this.#kept) {
      if (number > heard) break;
      this.#keptBytes -= bytes.length;
      dropped++;
    }
    if (dropped > 0) this.#kept = this.#kept.slice(dropped);
  }

  #tellAgain(from: number): void {
    if (from > this.#sent + 1) {
      this.#break(`part ${from} is asked for, ${this.#sent} were sent`);
      return;
    }
    this.#drop(from - 1);
    const first = this.#sent + 1 - this.#kept.length;
    // Only what was heard is dropped: an earlier part was asked for before that was told, and this came late or twice.
    if (from < first) return;
    for (const part of this.#kept) this.#effects.push({ kind: 'publish', part });
  }

  #ask(): void {
    this.#since = 0;
    this.#effects.push({ kind: 'ask', from: this.#heard + 1 });
  }

  #break(why: string): void {
    this.#broken = true;
    this.#kept = [];
    this.#parts = [];
    this.#effects.push({ kind: 'broken', why });
  }
}
