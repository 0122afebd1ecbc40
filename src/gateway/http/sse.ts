// Server-sent events with bounded buffers: a client that stops reading is disconnected.
import type { ServerResponse } from 'node:http';

const encoder = new TextEncoder();

/** A stream without events for this time gets a comment, so that proxies do not take it for dead. */
export const keepAliveMs = 10_000;

/** A connection whose client takes nothing for this time is closed. */
const stalledMsDefault = 60_000;

export interface SseOptions {
  readonly stalledMs?: number;
  /** Maximum number of bytes buffered for a slow client. */
  readonly bufferBytesMax: number;
  /** The client disconnected, or more than `bufferBytesMax` bytes are buffered. */
  readonly onDisconnect: (why: 'closed' | 'too slow') => void;
}

/** Where the frames of a stream go. */
interface Sink {
  write(frame: string): void;
  /** Bytes that the client has not taken yet. */
  readonly bufferedBytes: number;
  end(): void;
  /** Breaks the connection. */
  fail(error: Error): void;
}

/** A stream of `data:` lines, with comments while it has none. Writes never block, and do nothing after the client disconnected. */
export class SseStream {
  readonly #options: SseOptions;
  #sink: Sink = new HeldFrames();
  /** Neither ended nor disconnected. */
  #open = true;
  readonly #keepAlive: NodeJS.Timeout;

  constructor(options: SseOptions) {
    this.#options = options;
    this.#keepAlive = setTimeout(() => this.#write(': keep-alive\n\n'), keepAliveMs).unref();
  }

  /** All frames, for a reader without a connection. */
  toBody(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        pull: (controller) => {
          if (this.#sink instanceof HeldFrames) this.#moveTo(new BodyFrames(controller), this.#sink);
        },
        cancel: () => this.#disconnect('closed'),
      },
      new ByteLengthQueuingStrategy({ highWaterMark: 0 }),
    );
  }

  /** Writes all frames to a response with a head that has not been sent. */
  writeTo(outgoing: ServerResponse): void {
    const onGone = (): void => this.#disconnect('closed');
    if (outgoing.destroyed) onGone();
    outgoing.on('close', onGone).on('error', onGone);
    // Comments keep the connection of a client that reads active.
    outgoing.setTimeout(this.#options.stalledMs ?? stalledMsDefault, () => outgoing.destroy());
    if (this.#sink instanceof HeldFrames) this.#moveTo(new ConnectionFrames(outgoing), this.#sink);
  }

  send(data: object): void {
    this.#write(`data: ${JSON.stringify(data)}\n\n`);
  }

  /** An event with a name, as clients of the Anthropic protocol and of responses expect. */
  sendEvent(data: { readonly type: string } & Readonly<Record<string, unknown>>): void {
    this.#write(`event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  /** Ends the stream without a last frame. */
  end(): void {
    this.#close();
  }

  /** Ends the stream as clients of the OpenAI protocol expect. */
  done(): void {
    this.#write('data: [DONE]\n\n');
    this.#close();
  }

  /** Reports an error after the status line was sent: an event with the OpenAI error body, then the end. */
  fail(error: object): void {
    this.send(error);
    this.#close();
  }

  #moveTo(sink: Sink, held: HeldFrames): void {
    this.#sink = sink;
    for (const frame of held.frames) sink.write(frame);
    if (held.error !== undefined) sink.fail(held.error);
    else if (held.ended) sink.end();
  }

  #write(frame: string): void {
    if (!this.#open) return;
    const sink = this.#sink;
    this.#keepAlive.refresh();
    sink.write(frame);
    if (sink.bufferedBytes <= this.#options.bufferBytesMax) return;
    this.#disconnect('too slow');
    sink.fail(new Error('client reads too slowly'));
  }

  #disconnect(why: 'closed' | 'too slow'): void {
    if (!this.#open) return;
    this.#open = false;
    clearTimeout(this.#keepAlive);
    this.#options.onDisconnect(why);
  }

  #close(): void {
    if (!this.#open) return;
    this.#open = false;
    clearTimeout(this.#keepAlive);
    this.#sink.end();
  }
}

/** Frames of a stream without a reader yet. */
class HeldFrames implements Sink {
  readonly frames: string[] = [];
  bufferedBytes = 0;
  ended = false;
  error: Error | undefined;

  write(frame: string): void {
    this.frames.push(frame);
    this.bufferedBytes += Buffer.byteLength(frame);
  }

  end(): void {
    this.ended = true;
  }

  fail(error: Error): void {
    this.error = error;
  }
}

class BodyFrames implements Sink {
  readonly #controller: ReadableStreamDefaultController<Uint8Array>;

  constructor(controller: ReadableStreamDefaultController<Uint8Array>) {
    this.#controller = controller;
  }

  get bufferedBytes(): number {
    return -(this.#controller.desiredSize ?? 0);
  }

  write(frame: string): void {
    this.#controller.enqueue(encoder.encode(frame));
  }

  end(): void {
    this.#controller.close();
  }

  fail(error: Error): void {
    this.#controller.error(error);
  }
}

/** The head of a response leaves with its first frames, or alone after this time. */
const headMs = 10;

/** Frames of one turn of the event loop leave together, as one chunk of the response. */
class ConnectionFrames implements Sink {
  readonly #outgoing: ServerResponse;
  readonly #isChunked: boolean;
  readonly #headTimer: NodeJS.Timeout;
  #frames = '';
  #hasEnded = false;

  constructor(outgoing: ServerResponse) {
    this.#outgoing = outgoing;
    this.#isChunked = outgoing.chunkedEncoding;
    // Chunks are framed here: Node would write each of them in four pieces.
    outgoing.chunkedEncoding = false;
    this.#headTimer = setTimeout(() => {
      if (!outgoing.destroyed) outgoing.flushHeaders();
    }, headMs);
  }

  get bufferedBytes(): number {
    return this.#outgoing.writableLength + this.#frames.length;
  }

  write(frame: string): void {
    // `queueMicrotask` makes an async resource for each call.
    if (this.#frames === '') void Promise.resolve().then(() => this.#flush());
    this.#frames += frame;
  }

  end(): void {
    this.#hasEnded = true;
    if (this.#frames === '') this.#flush();
  }

  fail(error: Error): void {
    this.#outgoing.destroy(error);
  }

  #flush(): void {
    const frames = this.#frames;
    this.#frames = '';
    clearTimeout(this.#headTimer);
    if (this.#outgoing.destroyed) return;
    const length = Buffer.byteLength(frames).toString(16);
    const chunk = !this.#isChunked || frames === '' ? frames : `${length}\r\n${frames}\r\n`;
    if (this.#hasEnded) this.#outgoing.end(this.#isChunked ? `${chunk}0\r\n\r\n` : chunk);
    else this.#outgoing.write(chunk);
  }
}
