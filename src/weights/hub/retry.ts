// Trying again: what passes by itself, how long to wait, when to give up.
import { HubError, systemCode } from './errors.ts';

/** Something that may pass: a cut connection, a busy server. */
export class TransientError extends Error {
  /** What the server asked for. */
  readonly retryAfterMs: number | undefined;

  constructor(reason: string, retryAfterMs?: number) {
    super(reason);
    this.retryAfterMs = retryAfterMs;
  }
}

export type Sleep = (ms: number, signal: AbortSignal) => Promise<void>;

export interface RetryOptions {
  /** Tries after the first, counted anew whenever one made progress. */
  readonly retriesMax: number;
  readonly signal: AbortSignal;
  readonly sleep: Sleep;
  /** True when something came of the last try. */
  readonly progressed?: () => boolean;
  readonly onRetry?: (reason: string, delayMs: number) => void;
}

const delayMsFirst = 500;
const delayMsMax = 30_000;
/** Who is told to wait longer had better come back another time. */
const retryAfterMsMax = 5 * 60_000;

/**
 * @param what begins the message of the failure
 * @throws HubError (unreachable) when no try is left, (interrupted) when the signal aborts; what else `attempt` throws
 */
export async function withRetries<T>(what: string, options: RetryOptions, attempt: () => Promise<T>): Promise<T> {
  for (let failures = 1; ; failures++) {
    try {
      return await attempt();
    } catch (error) {
      if (options.signal.aborted) throw new HubError('interrupted', `${what}: interrupted`);
      if (!(error instanceof TransientError)) throw error;
      if (options.progressed?.() === true) failures = 1;
      const asked = error.retryAfterMs ?? 0;
      if (failures > options.retriesMax || asked > retryAfterMsMax)
        throw new HubError('unreachable', `${what}: ${error.message}${ending(failures, asked)}`);
      const delayMs = Math.max(asked, Math.min(delayMsMax, delayMsFirst * 2 ** (failures - 1)));
      options.onRetry?.(error.message, delayMs);
      await options.sleep(delayMs, options.signal);
    }
  }
}

function ending(failures: number, askedMs: number): string {
  if (askedMs > retryAfterMsMax) return `; it asks to wait ${Math.ceil(askedMs / 60_000)} minutes`;
  return failures > 1 ? ` (${failures} times)` : '';
}

/** Resolves early when the signal aborts. */
export function sleepUnlessAborted(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done);
    if (signal.aborted) done();
  });
}

/** What fetch or a body's stream threw, as something that may pass. */
export function connectionError(error: unknown): TransientError {
  const code = systemCode(error);
  if (error instanceof TransientError) return error;
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN') return new TransientError('the host name cannot be resolved');
  if (code === 'ECONNREFUSED') return new TransientError('the connection is refused');
  const cause =
    error instanceof Error ? (error.cause instanceof Error ? error.cause.message : error.message) : String(error);
  return new TransientError(`the connection was cut (${cause})`);
}
