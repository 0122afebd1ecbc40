// The log line of an HTTP request: written when its response has ended, with what the request used.

/** What a generating request did. */
export interface RequestOutcome {
  readonly outcome: 'finished' | 'cancelled' | 'failed';
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly outputTokens: number;
  /** Undefined: it ended before its first token. */
  readonly ttftMs: number | undefined;
}

/** The response head of a stream is sent long before its end. The line waits for both. */
export class RequestLine {
  readonly #write: (fields: object) => void;
  #response: object | undefined;
  #isStreaming = false;
  #outcome: RequestOutcome | undefined;

  constructor(write: (fields: object) => void) {
    this.#write = write;
  }

  /** The response is a stream, which `ended` ends. */
  streams(): void {
    this.#isStreaming = true;
  }

  /** Called once. */
  ended(outcome: RequestOutcome): void {
    this.#outcome = outcome;
    if (this.#response !== undefined) this.#flush(this.#response);
  }

  /** The head of the response is known, and its whole if it is no stream. Called once. */
  responded(fields: object): void {
    this.#response = fields;
    if (!this.#isStreaming || this.#outcome !== undefined) this.#flush(fields);
  }

  #flush(fields: object): void {
    this.#isStreaming = false;
    this.#write({ ...fields, ...this.#outcome });
  }
}
