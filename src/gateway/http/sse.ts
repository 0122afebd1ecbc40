// Server-sent events with bounded buffers: a client that stops reading is disconnected.

const encoder = new TextEncoder();

export interface SseOptions {
  /** Maximum number of bytes buffered for a slow client. */
  readonly bufferBytesMax: number;
  /** The client disconnected, or more than `bufferBytesMax` bytes are buffered. */
  readonly onDisconnect: (why: 'closed' | 'too slow') => void;
}

/** A stream of `data:` lines. Writes never block, and do nothing after the client disconnected. */
export class SseStream {
  readonly body: ReadableStream<Uint8Array>;
  readonly #options: SseOptions;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;

  constructor(options: SseOptions) {
    this.#options = options;
    this.body = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        cancel: () => this.#disconnect('closed'),
      },
      new ByteLengthQueuingStrategy({ highWaterMark: 1 }),
    );
  }

  send(data: object): void {
    this.#write(`data: ${JSON.stringify(data)}\n\n`);
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

  #write(text: string): void {
    const controller = this.#controller;
    if (controller === undefined) return;
    controller.enqueue(encoder.encode(text));
    if (-(controller.desiredSize ?? 0) <= this.#options.bufferBytesMax) return;
    this.#disconnect('too slow');
    controller.error(new Error('client reads too slowly'));
  }

  #disconnect(why: 'closed' | 'too slow'): void {
    if (this.#controller === undefined) return;
    this.#controller = undefined;
    this.#options.onDisconnect(why);
  }

  #close(): void {
    this.#controller?.close();
    this.#controller = undefined;
  }
}
