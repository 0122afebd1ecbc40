// Publishes KV events as vLLM does: numbered batches over a PUB socket, the latest of them again over a ROUTER socket.
import type { EngineKvEvent, EngineMedium } from '../../core/fleet/engine-kv-event.ts';
import { PublishedBlocks } from '../../core/fleet/published-blocks.ts';
import type { KvEventSource } from './engine-dialect.ts';
import { encodeMsgpack, type Packed } from './msgpack.ts';
import { type ZmtpConnection, type ZmtpHandler, ZmtpServer } from './zmtp.ts';

export interface KvEventLimits {
  /** Batches that a replay has, and their bytes. */
  readonly keptBatches: number;
  readonly keptBytes: number;
  /** A subscriber that has not taken so many bytes misses batches, and finds the gap with the next one. */
  readonly queuedBytes: number;
}

/** The batches are those of vLLM. */
const defaultLimits: KvEventLimits = { keptBatches: 10_000, keptBytes: 2 ** 26, queuedBytes: 2 ** 24 };
/** Of a replay, more is sent when the peer has taken what was sent. */
const replayBytesMax = 2 ** 20;
const endOfReplay = Buffer.alloc(8, 0xff);
const none = Buffer.alloc(0);

const media: Readonly<Record<EngineMedium, string>> = {
  device: 'GPU',
  host: 'CPU',
  disk: 'STORAGE',
  remote: 'EXTERNAL',
};

interface Batch {
  readonly number: Buffer;
  readonly payload: Buffer;
}

/** The events of one engine; instances of this process are one engine, of data-parallel rank 0. */
export class KvEventPublisher {
  /** What it publishes: a conductor reports to it. */
  readonly blocks = new PublishedBlocks(() => this.#schedule());
  readonly #topic: Buffer;
  readonly #limits: KvEventLimits;
  /** Topics of each subscriber. */
  readonly #subscribers = new Map<ZmtpConnection, Buffer[]>();
  #sockets: readonly ZmtpServer[] = [];
  #source: Required<KvEventSource>;
  readonly #kept: Batch[] = [];
  #keptBytes = 0;
  #number = 0;
  #missed = 0;
  #isScheduled = false;
  #isClosed = false;

  private constructor(source: Required<KvEventSource>, limits: KvEventLimits) {
    this.#source = source;
    this.#limits = limits;
    this.#topic = Buffer.from(source.topic);
  }

  /** The port 0 is a free one. @throws Error in one line if an address is invalid or in use */
  static async open(source: Required<KvEventSource>, limits = defaultLimits): Promise<KvEventPublisher> {
    const publisher = new KvEventPublisher(source, limits);
    const events = await ZmtpServer.listen(source.endpoint, 'PUB', (connection) => publisher.#subscriber(connection));
    publisher.#sockets = [events];
    const at = (endpoint: string, { port }: ZmtpServer): string => endpoint.replace(/\d+$/, String(port));
    const endpoint = at(source.endpoint, events);
    if (source.replay === undefined) return publisher.#opened({ ...source, endpoint });
    try {
      const replay = await ZmtpServer.listen(source.replay, 'ROUTER', (connection) => publisher.#replayer(connection));
      publisher.#sockets = [events, replay];
      return publisher.#opened({ ...source, endpoint, replay: at(source.replay, replay) });
    } catch (error) {
      events.close();
      throw error;
    }
  }

  /** With the ports in use. */
  get source(): KvEventSource {
    return this.#source;
  }

  get subscribers(): number {
    return this.#subscribers.size;
  }

  /** Batches that a subscriber has missed because it is slow, summed over subscribers. */
  get missed(): number {
    return this.#missed;
  }

  close(): void {
    this.#isClosed = true;
    for (const socket of this.#sockets) socket.close();
  }

  #opened(source: Required<KvEventSource>): this {
    this.#source = source;
    return this;
  }

  /** The changes of one turn of the event loop are one batch. */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      const events = this.blocks.take();
      if (events.length > 0 && !this.#isClosed) this.#publish(events);
    });
  }

  #publish(events: readonly EngineKvEvent[]): void {
    const number = Buffer.alloc(8);
    number.writeBigUInt64BE(BigInt(this.#number++));
    const atS = (performance.timeOrigin + performance.now()) / 1000;
    const batch = { number, payload: encodeMsgpack([atS, events.map(packedEvent), 0]) };
    this.#keep(batch);
    for (const [connection, topics] of this.#subscribers) {
      const isSubscribed = topics.some((topic) => this.#topic.subarray(0, topic.length).equals(topic));
      if (!isSubscribed) continue;
      if (connection.queuedBytes > this.#limits.queuedBytes) this.#missed++;
      else connection.send([this.#topic, batch.number, batch.payload]);
    }
  }

  #keep(batch: Batch): void {
    this.#kept.push(batch);
    this.#keptBytes += batch.payload.length;
    const { keptBatches, keptBytes } = this.#limits;
    while (this.#kept.length > keptBatches || (this.#keptBytes > keptBytes && this.#kept.length > 1))
      this.#keptBytes -= this.#kept.shift()?.payload.length ?? 0;
  }

  /** Messages of a SUB socket: 1 and a topic to subscribe, 0 and a topic to cancel. */
  #subscriber(connection: ZmtpConnection): ZmtpHandler {
    const topics: Buffer[] = [];
    return {
      onMessage: ([frame]) => {
        const topic = Buffer.from(frame.subarray(1));
        if (frame[0] === 1) topics.push(topic);
        else {
          const known = topics.findIndex((each) => each.equals(topic));
          if (known >= 0) topics.splice(known, 1);
        }
        if (topics.length > topicsMax) connection.close();
        this.#subscribers.set(connection, topics);
      },
      onClose: () => void this.#subscribers.delete(connection),
    };
  }

  /** A request is the first number; the answer one message for each batch, and one with the number -1. */
  #replayer(connection: ZmtpConnection): ZmtpHandler {
    let next: number | undefined;
    const send = (): void => {
      while (next !== undefined && connection.queuedBytes < replayBytesMax) {
        const [first] = this.#kept;
        const index = first === undefined ? 0 : Math.max(0, next - Number(first.number.readBigUInt64BE()));
        const batch = this.#kept[index];
        if (batch === undefined) {
          next = undefined;
          connection.send([none, endOfReplay, none]);
        } else {
          next = Number(batch.number.readBigUInt64BE()) + 1;
          connection.send([none, batch.number, batch.payload]);
        }
      }
    };
    return {
      onMessage: (frames) => {
        const first = frames.at(-1);
        if (first?.length !== 8) connection.close();
        else {
          next = Number(first.readBigUInt64BE());
          send();
        }
      },
      onDrain: send,
      onClose: () => {
        next = undefined;
      },
    };
  }
}

/** Topics of a subscriber: more end its connection. */
const topicsMax = 64;

/** Maps, with the fields that vLLM has no defaults for. */
export function packedEvent(event: EngineKvEvent): Packed {
  if (event.kind === 'cleared') return { type: 'AllBlocksCleared' };
  if (event.kind === 'removed')
    return { type: 'BlockRemoved', block_hashes: event.hashes, medium: media[event.medium] };
  const { hashes, parent, tokens, blockTokens, medium, extraKeys } = event;
  return new Map<string, Packed>([
    ['type', 'BlockStored'],
    ['block_hashes', hashes],
    ['parent_block_hash', parent],
    ['token_ids', tokens],
    ['block_size', blockTokens],
    ['lora_id', undefined],
    ['medium', media[medium]],
    ['lora_name', undefined],
    ...(extraKeys === undefined ? [] : [['extra_keys', extraKeys.map(keysOf)] as const]),
  ]);
}

function keysOf(salt: string): Packed {
  return salt === '' ? undefined : [salt];
}
