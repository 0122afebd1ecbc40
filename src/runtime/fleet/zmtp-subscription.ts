// A subscription to the numbered messages of an engine: connects, and connects again after each interruption.
import { connectZmtp, subscription, tcpAddress, type ZmtpConnection } from './zmtp.ts';

/** Before the first attempt to connect again, and before later ones. */
const reconnectMs = { first: 50, later: 1_000 };

export interface SubscriptionHandler {
  /** Subscribed, for the first time or again: messages may have passed. */
  onConnected(): void;
  onMessage(number: number, payload: Buffer): void;
  /** The first call since it was connected. */
  onInterrupted(reason: string): void;
}

/** Messages of engines have three frames: topic, number (64 bits, big-endian), payload. */
export class ZmtpSubscription {
  readonly #endpoint: string;
  readonly #topic: string;
  readonly #handler: SubscriptionHandler;
  #connection: ZmtpConnection;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #isReported = false;

  /** @throws Error in one line if the address is invalid */
  constructor(endpoint: string, topic: string, handler: SubscriptionHandler) {
    tcpAddress(endpoint);
    this.#endpoint = endpoint;
    this.#topic = topic;
    this.#handler = handler;
    this.#connection = this.#connect();
  }

  /** No call of the handler follows. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#connection.close();
  }

  #connect(): ZmtpConnection {
    const connection = connectZmtp(this.#endpoint, 'SUB', {
      onReady: () => {
        connection.send(subscription(this.#topic));
        this.#isReported = false;
        this.#handler.onConnected();
      },
      onMessage: ([, number, payload]) => {
        // A message of another shape counts as lost.
        if (number?.length === 8 && payload !== undefined)
          this.#handler.onMessage(Number(number.readBigUInt64BE()), payload);
      },
      onClose: (reason) => {
        if (this.#isClosed) return;
        if (!this.#isReported) this.#handler.onInterrupted(reason);
        const delayMs = this.#isReported ? reconnectMs.later : reconnectMs.first;
        this.#isReported = true;
        this.#timer = setTimeout(() => {
          this.#connection = this.#connect();
        }, delayMs);
        this.#timer.unref();
      },
    });
    return connection;
  }
}
