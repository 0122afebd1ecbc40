// The errors of the library: classes by what a caller can do about them, each with a code of the HTTP API.
import { ApiError } from '../gateway/http/errors.ts';

/** Every error of this library, except the reason of an aborted signal. */
export class KvasirError extends Error {
  /** The code that the HTTP API gives for the same cause, for example `context_length_exceeded`. */
  readonly code: string;

  /** The HTTP status for a server that passes the error on. */
  get status(): number {
    return 500;
  }

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** A model or an option that `load` cannot use. */
export class LoadError extends KvasirError {}

/** A request that can never be served as it is. */
export class InvalidRequestError extends KvasirError {
  /** The option or message at fault, for example `messages.0.content`. */
  readonly field: string | undefined;

  override get status(): number {
    return 400;
  }

  constructor(code: string, message: string, field: string | undefined, options?: ErrorOptions) {
    super(code, message, options);
    this.field = field;
  }
}

/** A request that can be served later: the queue or the KV memory is full. */
export class OverloadedError extends KvasirError {
  /** When another attempt may succeed; undefined: unknown. */
  readonly retryAfterMs: number | undefined;

  override get status(): number {
    return 503;
  }

  constructor(code: string, message: string, retryAfterMs: number | undefined, options?: ErrorOptions) {
    super(code, message, options);
    this.retryAfterMs = retryAfterMs;
  }
}

/** An answer that is no value of its schema: cut by the token limit, or refused by the schema's own checks. */
export class OutputError extends KvasirError {
  /** The text of the answer. */
  readonly text: string;

  constructor(code: string, message: string, text: string, options?: ErrorOptions) {
    super(code, message, options);
    this.text = text;
  }
}

/** The engine lost the request. */
export class EngineError extends KvasirError {}

/** The engine is closed. */
export class ClosedError extends KvasirError {
  override get status(): number {
    return 503;
  }

  constructor() {
    super('shutting_down', 'Cannot serve request: the engine is closed');
  }
}

/** An error of the gateway's core as an error of the library. */
export function libraryError(error: unknown): unknown {
  if (error instanceof KvasirError) return error;
  if (!(error instanceof ApiError)) return error;
  const { status, code = 'invalid_value', retryAfterMs } = error;
  const cause = { cause: error };
  if (code === 'shutting_down') return new ClosedError();
  if (status === 429 || status === 503) return new OverloadedError(code, error.message, retryAfterMs, cause);
  if (status >= 500) return new EngineError(code, error.message, cause);
  const field = error.param && inCamelCase(error.param);
  const message = error.param === undefined ? error.message : error.message.replaceAll(/'[a-z_.0-9]+/g, inCamelCase);
  return new InvalidRequestError(code, message, field, cause);
}

/** Fields of requests in the names of the library. */
function inCamelCase(field: string): string {
  return field
    .replace('response_format.json_schema.schema', 'schema')
    .replace('.function', '')
    .replaceAll(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}
