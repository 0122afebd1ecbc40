// A running request: a promise of its result and an async iterable of its deltas, of which the user may take either or both.

/** Adjacent pieces of text become one delta, unless a reader already has the first: a slow reader holds no list of tokens. */
class DeltaLog<Delta> {
  readonly #deltas: Delta[] = [];
  readonly #merge: (earlier: Delta, later: Delta) => Delta | undefined;
  /** Deltas that a reader has. */
  #delivered = 0;
  #hasEnded = false;
  #waiting: (() => void)[] = [];

  constructor(merge: (earlier: Delta, later: Delta) => Delta | undefined) {
    this.#merge = merge;
  }

  push(delta: Delta): void {
    const last = this.#deltas.at(-1);
    const merged = last === undefined || this.#deltas.length <= this.#delivered ? undefined : this.#merge(last, delta);
    if (merged === undefined) this.#deltas.push(delta);
    else this.#deltas[this.#deltas.length - 1] = merged;
    this.#wake();
  }

  end(): void {
    this.#hasEnded = true;
    this.#wake();
  }

  /** The delta at `index`; undefined after the last one. */
  async read(index: number): Promise<Delta | undefined> {
    while (index >= this.#deltas.length && !this.#hasEnded)
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    if (index >= this.#deltas.length) return undefined;
    this.#delivered = Math.max(this.#delivered, index + 1);
    return this.#deltas[index];
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }
}

/** What a run gives to its work. */
export interface RunSink<Delta> {
  /** The engine has accepted the request. */
  accepted(): void;
  delta(delta: Delta): void;
  /** Aborted when the run is cancelled. */
  readonly signal: AbortSignal;
}

/**
 * A request that has started. `await` gives its result, `for await` its deltas, in either order. The engine never waits
 * for a reader. A loop that is left early cancels the request.
 */
export class Run<Delta extends { readonly type: string }, Result>
  extends Promise<Result>
  implements AsyncIterable<Delta>
{
  /** Resolves when the engine has accepted the request; rejects with its refusal. A server then knows its status. */
  readonly accepted: Promise<void>;
  readonly #log: DeltaLog<Delta>;
  readonly #abort = new AbortController();
  #isSettled = false;

  /** `then` gives ordinary promises. */
  static override get [Symbol.species](): PromiseConstructor {
    return Promise;
  }

  /** @internal */
  constructor(
    start: (sink: RunSink<Delta>) => Promise<Result>,
    merge: (earlier: Delta, later: Delta) => Delta | undefined,
    signals: readonly (AbortSignal | undefined)[],
  ) {
    let resolve: (result: Result) => void = () => {};
    let reject: (error: unknown) => void = () => {};
    super((onResult, onError) => {
      resolve = onResult;
      reject = onError;
    });
    this.#log = new DeltaLog(merge);
    const stop = (event: Event): void => this.#abort.abort((event.target as AbortSignal).reason);
    const given = signals.filter((signal) => signal !== undefined);
    for (const signal of given) {
      if (signal.aborted) this.#abort.abort(signal.reason);
      else signal.addEventListener('abort', stop, { once: true });
    }
    this.accepted = new Promise((accepted, refused) => {
      const sink = { accepted, delta: (delta: Delta) => this.#log.push(delta), signal: this.#abort.signal };
      start(sink).then(resolve, reject);
      this.then(() => accepted(), refused);
    });
    this.accepted.catch(() => {});
    // A user of the deltas receives the failure there.
    this.catch(() => {}).finally(() => {
      this.#isSettled = true;
      for (const signal of given) signal.removeEventListener('abort', stop);
      this.#log.end();
    });
  }

  /** Ends the request and frees its KV memory: the promise and the loops reject with `reason`. No effect after its end. */
  cancel(reason: unknown = new DOMException('This operation was aborted', 'AbortError')): void {
    this.#abort.abort(reason);
  }

  /** Deltas from the first one on, for each loop. Throws the error of the request after the deltas before it. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Delta, void, undefined> {
    try {
      let index = 0;
      for (let next = await this.#log.read(index); next !== undefined; next = await this.#log.read(index)) {
        index++;
        yield next;
      }
      await this;
    } finally {
      if (!this.#isSettled) this.cancel();
    }
  }

  /** The text alone, encoded: the body of a `Response`. Cancelling it cancels the request. */
  textStream(): ReadableStream<Uint8Array> {
    const encoder = new TextEncoder();
    const deltas = this[Symbol.asyncIterator]();
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          for (;;) {
            const { done, value } = await deltas.next();
            if (done === true) return controller.close();
            if (value.type !== 'text' || !('text' in value)) continue;
            return controller.enqueue(encoder.encode(String(value.text)));
          }
        },
        cancel: (reason) => this.cancel(reason),
      },
      { highWaterMark: 0 },
    );
  }
}
