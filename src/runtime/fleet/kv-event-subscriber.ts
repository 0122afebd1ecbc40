// Subscribes to the KV events of one rank of an engine, and has lost batches replayed.
import type { EngineKvBatch } from '../../core/fleet/engine-kv-event.ts';
import {
  type EngineSnapshot,
  EventSequence,
  type SequenceEffect,
  type SequencePosition,
} from '../../core/fleet/event-sequence.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { KvEventSource } from './engine-dialect.ts';
import { KvEventReader } from './kv-event-frames.ts';
import { reasonOf } from './reason-of.ts';
import { connectZmtp, tcpAddress, type ZmtpConnection } from './zmtp.ts';
import { ZmtpSubscription } from './zmtp-subscription.ts';

const replayTimeoutMs = 5_000;
/** The number that ends a replay. */
const endOfReplay = 2n ** 64n - 1n;

export interface KvEventHandler {
  apply(batch: EngineKvBatch): void;
  /** Batches are lost: the blocks of the engine are unknown. */
  reset(): void;
  /** The blocks of the engine are those that another gateway has stated. */
  adopt(snapshot: EngineSnapshot): void;
  log(message: string): void;
}

export interface AskedSnapshot {
  /** True if the batches here follow the position. */
  fits(position: SequencePosition): boolean;
  /** Ends the request. */
  readonly signal: AbortSignal;
}

/** The blocks of the engine from another gateway: the first ones that fit; undefined: none. Does not reject. */
export type RequestSnapshot = (asked: AskedSnapshot) => Promise<EngineSnapshot | undefined>;

export class KvEventSubscriber {
  readonly #source: KvEventSource;
  readonly #handler: KvEventHandler;
  readonly #sequence: EventSequence;
  readonly #reader = new KvEventReader();
  readonly #subscription: ZmtpSubscription;
  readonly #requestSnapshot: RequestSnapshot | undefined;
  readonly #closing = new AbortController();
  /** Aborts the last request for a snapshot. */
  #superseded = new AbortController();
  #replay: ZmtpConnection | undefined;
  #replayTimer: NodeJS.Timeout | undefined;
  #isClosed = false;
  /** A batch of this connection could not be read. */
  #isUnreadable = false;

  /**
   * @param requestSnapshot undefined: there is no other gateway
   * @throws Error in one line if an address is invalid
   */
  constructor(source: KvEventSource, handler: KvEventHandler, requestSnapshot?: RequestSnapshot) {
    if (source.replay !== undefined) tcpAddress(source.replay);
    this.#source = source;
    this.#handler = handler;
    this.#sequence = new EventSequence(source.replay !== undefined, requestSnapshot !== undefined);
    this.#requestSnapshot = requestSnapshot;
    this.#subscription = new ZmtpSubscription(source.endpoint, source.topic, {
      onConnected: () => {
        this.#isUnreadable = false;
        this.#carryOut(this.#sequence.connected());
      },
      onMessage: (number, payload) => {
        const batch = this.#read(payload);
        if (batch !== undefined) this.#carryOut(this.#sequence.received(number, batch));
      },
      onInterrupted: (reason) => handler.log(`KV events of ${source.endpoint} are interrupted: ${reason}`),
    });
  }

  get counts(): EventSequence['counts'] {
    return this.#sequence.counts;
  }

  /** @see EventSequence.position */
  get position(): SequencePosition | undefined {
    return this.#sequence.position;
  }

  close(): void {
    this.#isClosed = true;
    this.#closing.abort();
    this.#endReplay();
    this.#subscription.close();
  }

  #carryOut(effects: readonly SequenceEffect[]): void {
    for (const effect of effects) {
      switch (effect.kind) {
        case 'apply':
          this.#handler.apply(effect.batch);
          break;
        case 'reset':
          this.#handler.reset();
          break;
        case 'adopt':
          this.#handler.adopt(effect.snapshot);
          break;
        case 'replay':
          this.#startReplay(effect.from);
          break;
        case 'requestSnapshot':
          void this.#takeSnapshot();
          break;
        default:
          assertNever(effect);
      }
    }
  }

  async #takeSnapshot(): Promise<void> {
    const fits = (position: SequencePosition): boolean => this.#sequence.fits(position);
    // After a new connection another snapshot may be requested while the answer to this request is on its way.
    this.#superseded.abort();
    const superseded = new AbortController();
    this.#superseded = superseded;
    const signal = AbortSignal.any([this.#closing.signal, superseded.signal]);
    const snapshot = await this.#requestSnapshot?.({ fits, signal });
    if (!this.#isClosed && !superseded.signal.aborted) this.#carryOut(this.#sequence.snapshotEnded(snapshot));
  }

  #startReplay(from: number): void {
    const { replay } = this.#source;
    if (replay === undefined) return;
    this.#endReplay();
    const end = (): void => {
      this.#endReplay();
      if (!this.#isClosed) this.#carryOut(this.#sequence.replayEnded());
    };
    const connection = connectZmtp(replay, 'DEALER', {
      onReady: () => {
        const first = Buffer.alloc(8);
        first.writeBigUInt64BE(BigInt(from));
        connection.send([Buffer.alloc(0), first]);
      },
      // Versions differ in the frames before number and payload.
      onMessage: (frames) => {
        if (this.#replay !== connection) return;
        const [number, payload] = frames.slice(-2);
        if (number?.length !== 8 || number.readBigUInt64BE() === endOfReplay) {
          end();
          return;
        }
        const batch = this.#read(payload);
        if (batch !== undefined) this.#sequence.replayed(Number(number.readBigUInt64BE()), batch);
      },
      onClose: () => {
        if (this.#replay === connection) end();
      },
    });
    this.#replay = connection;
    this.#replayTimer = setTimeout(end, replayTimeoutMs);
    this.#replayTimer.unref();
  }

  #endReplay(): void {
    clearTimeout(this.#replayTimer);
    const connection = this.#replay;
    this.#replay = undefined;
    connection?.close();
  }

  /** A batch that cannot be read counts as lost. */
  #read(payload: Uint8Array | undefined): EngineKvBatch | undefined {
    try {
      return payload && this.#reader.read(payload);
    } catch (error) {
      if (!this.#isUnreadable)
        this.#handler.log(`KV events of ${this.#source.endpoint} are incomplete: ${reasonOf(error)}`);
      this.#isUnreadable = true;
      return undefined;
    }
  }
}
