// The blocks of engines from one gateway to another over HTTP, for engines whose replays do not reach back far enough.
import { createHash, timingSafeEqual } from 'node:crypto';
import type { EngineKvEvent } from '../../core/fleet/engine-kv-event.ts';
import type { EngineSnapshot, SequencePosition } from '../../core/fleet/event-sequence.ts';
import { KvEventReader } from './kv-event-frames.ts';
import { packedEvent } from './kv-event-publisher.ts';
import type { AskedSnapshot } from './kv-event-subscriber.ts';
import { decodeMsgpack, encodeMsgpack } from './msgpack.ts';
import { reasonOf } from './reason-of.ts';

/** The gateways in front of the same engines. */
export interface OtherGateways {
  /** The same at all of them. */
  readonly key: string;
  /** Their URLs. */
  readonly peers: readonly string[];
}

/** A snapshot that is being listed. */
export type ListedSnapshot = SequencePosition & { readonly events: Iterable<EngineKvEvent> };

export const snapshotPath = '/fleet/blocks';
/** Of the form of the body. */
const version = 1;
/** A gateway that has not sent its snapshot in `eachMs` is passed over. Batches of the engine are held for `allMs` at most. */
const patienceDefault = { eachMs: 10_000, allMs: 30_000 };
/** Longer snapshots are refused: 40 million tokens in blocks of 16 take about so much. */
const bytesMax = 2 ** 28;
const frameBytesMax = 2 ** 22;
const eventsPerFrame = 4;
/** Snapshots that are sent at once, and the time of each: a snapshot keeps the blocks of its time in memory. */
const served = { most: 4, ms: 2 * patienceDefault.eachMs };

/** A rank of an engine whose blocks are requested. */
export interface SnapshotRequest extends AskedSnapshot {
  /** The URL of the engine. */
  readonly engine: string;
  readonly rank: number;
  /** Snapshots with more blocks are refused. */
  readonly blocksMax: number;
}

/** A body has a frame with version, number and time, frames with batches of KV events, and an empty frame at its end. */
export class GatewaySnapshots {
  readonly #options: OtherGateways;
  readonly #log: (message: string) => void;
  readonly #patience: typeof patienceDefault;
  #served = 0;
  /** Requests follow each other: all ranks begin at once, and a peer sends only a few snapshots at a time. */
  #lastRequest: Promise<unknown> = Promise.resolve();

  constructor(options: OtherGateways, log: (message: string) => void, patience = patienceDefault) {
    this.#options = options;
    this.#log = log;
    this.#patience = patience;
  }

  /** The blocks of an engine's rank from the first other gateway whose position fits. Does not reject. */
  request(request: SnapshotRequest): Promise<EngineSnapshot | undefined> {
    const inTime = AbortSignal.timeout(this.#patience.allMs);
    const snapshot = this.#lastRequest.then(() => this.#requestNow(request, inTime));
    this.#lastRequest = snapshot;
    return snapshot;
  }

  async #requestNow(request: SnapshotRequest, inTime: AbortSignal): Promise<EngineSnapshot | undefined> {
    const { engine, signal } = request;
    for (const peer of this.#options.peers) {
      if (signal.aborted) return undefined;
      if (inTime.aborted) {
        this.#log(`Blocks of ${engine} have not arrived in ${this.#patience.allMs / 1000} s: they are learned anew`);
        return undefined;
      }
      try {
        return await this.#fetch(peer, { ...request, signal: AbortSignal.any([signal, inTime]) });
      } catch (error) {
        if (!signal.aborted) this.#log(`Blocks of ${engine} are not taken from gateway ${peer}: ${reasonOf(error)}`);
      }
    }
    return undefined;
  }

  /** @throws Error in one line if the gateway has no snapshot that fits */
  async #fetch(peer: string, { engine, rank, fits, signal, blocksMax }: SnapshotRequest): Promise<EngineSnapshot> {
    const url = `${peer.replace(/\/$/, '')}${snapshotPath}?${new URLSearchParams({ engine, rank: String(rank) })}`;
    const response = await fetch(url, {
      headers: { authorization: `Bearer ${this.#options.key}` },
      redirect: 'error',
      signal: AbortSignal.any([signal, AbortSignal.timeout(this.#patience.eachMs)]),
    }).catch((error: unknown) => {
      throw error instanceof Error && error.cause !== undefined ? error.cause : error;
    });
    if (response.status !== 200 || response.body === null) {
      await response.body?.cancel();
      throw new Error(`it answers ${response.status}`);
    }
    let position: SequencePosition | undefined;
    const reader = new KvEventReader();
    const events: EngineKvEvent[] = [];
    let blocks = 0;
    for await (const frame of framesOf(response.body)) {
      if (position !== undefined) {
        // A snapshot only stores: events of another kind could be many in few bytes.
        for (const event of reader.read(frame).events) {
          if (event.kind !== 'stored') continue;
          events.push(event);
          blocks += event.hashes.length;
        }
        if (blocks > blocksMax) throw new Error(`its answer has more than ${blocksMax} blocks`);
        continue;
      }
      position = positionOf(frame);
      if (!fits(position)) throw new Error(`it is at batch ${position.next}, which does not follow those here`);
    }
    if (position === undefined) throw new Error('its answer is empty');
    return { ...position, events };
  }

  /** Answers another gateway. @param snapshotOf undefined: the rank of the engine is unknown, or batches are missing */
  serve(request: Request, snapshotOf: (engine: string, rank: number) => ListedSnapshot | undefined): Response {
    const [scheme, key = ''] = (request.headers.get('authorization') ?? '').split(' ');
    if (scheme.toLowerCase() !== 'bearer' || !timingSafeEqual(digestOf(key), digestOf(this.#options.key)))
      return refusal(401, 'Cannot list blocks: the key is not that of the gateways');
    if (this.#served >= served.most)
      return refusal(503, `Cannot list blocks: ${this.#served} snapshots are being sent`);
    const query = new URL(request.url).searchParams;
    const snapshot = snapshotOf(query.get('engine') ?? '', Number(query.get('rank') ?? 0));
    if (snapshot === undefined) return refusal(404, 'Cannot list blocks: the blocks of this engine are not known here');
    this.#served++;
    return new Response(
      streamOf(framesFor(snapshot), () => {
        this.#served--;
      }),
      { headers: { 'content-type': 'application/octet-stream' } },
    );
  }
}

function digestOf(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}

function refusal(status: number, message: string): Response {
  return Response.json({ error: { message } }, { status });
}

function* framesFor({ next, atS, events }: ListedSnapshot): Generator<Buffer> {
  yield framed(encodeMsgpack([version, next, atS]));
  let batch: EngineKvEvent[] = [];
  for (const event of events) {
    batch.push(event);
    if (batch.length < eventsPerFrame) continue;
    yield framed(encodeMsgpack([atS, batch.map(packedEvent)]));
    batch = [];
  }
  if (batch.length > 0) yield framed(encodeMsgpack([atS, batch.map(packedEvent)]));
  yield framed(Buffer.alloc(0));
}

function framed(bytes: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

/** Frames are encoded as the peer takes them, for a limited time. @param onEnd called once */
function streamOf(frames: Generator<Buffer>, onEnd: () => void): ReadableStream<Uint8Array> {
  let timer: NodeJS.Timeout;
  const end = (): void => {
    clearTimeout(timer);
    onEnd();
  };
  return new ReadableStream<Uint8Array>(
    {
      start: (controller) => {
        timer = setTimeout(() => {
          onEnd();
          controller.error(new Error('the other gateway does not take its snapshot'));
        }, served.ms);
        timer.unref();
      },
      pull: (controller) => {
        const { done, value } = frames.next();
        if (done !== true) controller.enqueue(value);
        else {
          end();
          controller.close();
        }
      },
      cancel: end,
    },
    { highWaterMark: 1 },
  );
}

/** @throws Error in one line unless the frame states a position of this version */
function positionOf(frame: Uint8Array): SequencePosition {
  const head = decodeMsgpack(frame);
  const [stated, next, atS] = Array.isArray(head) ? head : [];
  if (stated !== version) throw new Error(`its answer is not of version ${version}`);
  if (!Number.isSafeInteger(next) || next < 1 || typeof atS !== 'number') throw new Error('its answer has no position');
  return { next, atS };
}

/** The frames up to the empty one. @throws Error in one line if the body is too long, or ends before */
async function* framesOf(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let chunks: Uint8Array[] = [];
  /** Bytes of `chunks`, and those that its first frame needs. */
  let held = 0;
  let needed = 4;
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > bytesMax) throw new Error(`its answer exceeds ${bytesMax} bytes`);
    chunks.push(chunk);
    held += chunk.length;
    // Joined once for each frame.
    if (held < needed) continue;
    let rest = Buffer.concat(chunks, held);
    while (rest.length >= 4) {
      const length = rest.readUInt32BE();
      if (length === 0) return;
      if (length > frameBytesMax) throw new Error(`a frame of its answer exceeds ${frameBytesMax} bytes`);
      needed = 4 + length;
      if (rest.length < needed) break;
      yield rest.subarray(4, needed);
      rest = rest.subarray(needed);
      needed = 4;
    }
    chunks = [rest];
    held = rest.length;
  }
  throw new Error('its answer ends early');
}
