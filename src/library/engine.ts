// An open engine as the requests of the library use it: the gateway's core without HTTP, metrics and keys.

import type { InferencePort, InstanceSnapshot } from '../core/protocol/ports.ts';
import { ApiError, newRequestId, toApiError } from '../gateway/http/errors.ts';
import { anyCaller } from '../gateway/keys/caller.ts';
import { unobserved } from '../gateway/metrics/metrics.ts';
import type { PlanCall, PlanContext } from '../gateway/openai/endpoint.ts';
import {
  type Choice,
  type ChoiceHandler,
  type Usage as CoreUsage,
  RunningChoices,
} from '../gateway/openai/run-choices.ts';
import { ClosedError, EngineError, libraryError } from './errors.ts';
import type { RunSink } from './run.ts';

/** Tokens of a request. */
export interface Usage {
  readonly promptTokens: number;
  /** Prompt tokens whose keys and values came from the prefix cache. */
  readonly cachedTokens: number;
  readonly outputTokens: number;
  /** Of those, tokens of reasoning. */
  readonly reasoningTokens: number;
}

/** Node counts timers in 32 bits. */
const longestTimerMs = 2 ** 31 - 1;

/** Keeps the process alive while it is held; idle engines let it exit. */
class ProcessHold {
  #count = 0;
  #timer: NodeJS.Timeout | undefined;

  async during<T>(work: () => Promise<T>): Promise<T> {
    this.#timer ??= setInterval(() => {}, longestTimerMs);
    this.#count++;
    try {
      return await work();
    } finally {
      if (--this.#count === 0) {
        clearInterval(this.#timer);
        this.#timer = undefined;
      }
    }
  }
}

/** One hold for all engines of the process. */
export const processHold = new ProcessHold();

/** What an engine is made of. */
export interface EngineParts extends Pick<PlanContext, 'model' | 'encode' | 'grammars'> {
  readonly cluster: InferencePort;
  /** Ends all threads. */
  close(): Promise<void>;
}

export class Engine {
  readonly context: PlanContext;
  readonly #parts: EngineParts;
  readonly #closing = new AbortController();
  #closed: Promise<void> | undefined;

  /** @param queue requests at once */
  constructor(parts: EngineParts, queue: number) {
    const { model, encode, grammars } = parts;
    this.#parts = parts;
    // A library has one caller, without keys and limits.
    this.context = { model, encode, grammars, choicesMax: queue, sloClasses: new Map(), usage: { check: () => {} } };
  }

  snapshot(): InstanceSnapshot {
    return this.#parts.cluster.snapshot();
  }

  /** Aborted when the engine closes. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  /** A call for the core. @throws ClosedError */
  newCall(): PlanCall {
    if (this.#closing.signal.aborted) throw new ClosedError();
    const requestId = newRequestId();
    return { requestId, caller: anyCaller, sloClass: undefined, trace: undefined, batch: false };
  }

  /** Runs work that may fail with errors of the core; a part of it may outlast the abort. @throws KvasirError, or the reason of `signal` */
  async work<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    try {
      return await processHold.during(() => (signal === undefined ? work() : untilAborted(work(), signal)));
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      const known = libraryError(error);
      if (known instanceof Error && !(error instanceof TypeError)) throw known;
      throw new EngineError('internal_error', toApiError(error).message, { cause: error });
    }
  }

  /** Runs choices to their end. @throws ApiError; the reason of `signal`, whose abort frees the pages of the choices */
  async run(
    choices: readonly Choice[],
    handler: ChoiceHandler,
    { accepted, signal }: Pick<RunSink<never>, 'accepted' | 'signal'>,
  ): Promise<CoreUsage> {
    signal.throwIfAborted();
    const running = new RunningChoices(this.#parts.cluster, choices, handler, unobserved);
    accepted();
    const cancel = (): void => running.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    try {
      await running.done;
      return running.usage;
    } catch (error) {
      if (error instanceof ApiError && error.status === 499) signal.throwIfAborted();
      throw error;
    } finally {
      signal.removeEventListener('abort', cancel);
    }
  }

  /** Ends running requests and all threads. */
  close(): Promise<void> {
    this.#closing.abort(new ClosedError());
    this.#closed ??= processHold.during(() => this.#parts.close());
    return this.#closed;
  }
}

/** The result of the work, unless the signal is aborted first: then its reason. */
function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}
