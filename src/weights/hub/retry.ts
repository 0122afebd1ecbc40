// Retries of hub requests: which failures are transient, how long to wait, when to give up.
import { HubError, systemCode } from './errors.ts';

/** A failure that may pass: a cut connection, a busy server. */
export class TransientError extends Error {
  /** Delay that the server asked for. */
  readonly retryAfterMs: number | undefined;

  constructor(reason: string, retryAfterMs?: number) {
    super(reason);
    this.retryAfterMs = retryAfterMs;
  }
}

/** How operations on the hub wait and stop. */
export interface HubContext {
  readonly signal: AbortSignal;
  /** Resolves early when the signal aborts. */
  sleep(ms: number): Promise<void>;
}

export interface RetryPolicy {
  /** Retries after the first attempt; an attempt with progress resets the count. */
  readonly retriesMax: number;
  /** True when the last attempt made progress. */
  progressed?(): boolean;
  onRetry?(reason: string, delayMs: number): void;
}

const delayMsFirst = 500;
const delayMsMax = 30_000;
/** A server that asks for a longer delay ends the download. */
const retryAfterMsMax = 5 * 60_000;

/**
 * @param what start of the failure's message
 * @throws HubError (unreachable) after the last retry, (interrupted) when the signal aborts; other errors of `attempt`
 * as they are
 */
export async function withRetries<T>(
  what: string,
  context: HubContext,
  policy: RetryPolicy,
  attempt: () => Promise<T>,
): Promise<T> {
  for (let failures = 1; ; failures++) {
    try {
      return await attempt();
    } catch (error) {
      if (context.signal.aborted) throw new HubError('interrupted', `${what}: interrupted`);
      if (!(error instanceof TransientError)) throw error;
      if (policy.progressed?.() === true) failures = 1;
      const requestedMs = error.retryAfterMs ?? 0;
      if (failures > policy.retriesMax || requestedMs > retryAfterMsMax)
        throw new HubError('unreachable', `${what}: ${error.message}${failureDetail(failures, requestedMs)}`);
      const delayMs = Math.max(requestedMs, Math.min(delayMsMax, delayMsFirst * 2 ** (failures - 1)));
      policy.onRetry?.(error.message, delayMs);
      await context.sleep(delayMs);
    }
  }
}

function failureDetail(failures: number, requestedMs: number): string {
  if (requestedMs > retryAfterMsMax) return `; the server asks to wait ${Math.ceil(requestedMs / 60_000)} minutes`;
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

/** An error of fetch or of a response body, as a transient failure. */
export function connectionError(error: unknown): TransientError {
  const code = systemCode(error);
  if (error instanceof TransientError) return error;
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN') return new TransientError('the host name cannot be resolved');
  if (code === 'ECONNREFUSED') return new TransientError('the connection is refused');
  const cause =
    error instanceof Error ? (error.cause instanceof Error ? error.cause.message : error.message) : String(error);
  return new TransientError(`the connection was cut (${cause})`);
}
