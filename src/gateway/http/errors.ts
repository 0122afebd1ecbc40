// Errors as clients receive them: the OpenAI shape, one table from failure to status, and no internal details.

import { randomUUID } from 'node:crypto';
import type { FailureCode, RefusalCause } from '../../core/protocol/refusal-cause.ts';

export interface ApiErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
    /** The figures that caused a refusal. */
    readonly refusal?: object;
  };
}

/** An error response; `param` names the invalid field. */
export class ApiError extends Error {
  readonly status: number;
  readonly type: string;
  readonly code: string | undefined;
  readonly param: string | undefined;
  readonly retryAfterMs: number | undefined;
  readonly refusal: object | undefined;
  /** Methods that the path accepts. */
  readonly allow: string | undefined;

  constructor(
    status: number,
    message: string,
    details: {
      code?: string;
      param?: string | undefined;
      retryAfterMs?: number | undefined;
      refusal?: object | undefined;
      allow?: string;
    } = {},
  ) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.type = errorType(status);
    this.code = details.code;
    this.param = details.param;
    this.retryAfterMs = details.retryAfterMs;
    this.refusal = details.refusal;
    this.allow = details.allow;
  }

  body(): ApiErrorBody {
    const { message, type, param = null, code = null, refusal } = this;
    return { error: { message, type, param, code, ...(refusal && { refusal }) } };
  }
}

/** A 400 that names the field. */
export function badField(param: string | undefined, message: string, code = 'invalid_value'): ApiError {
  return new ApiError(400, message, { code, param });
}

const failureStatus: Readonly<Record<FailureCode, number>> = {
  NOT_READY: 503,
  KV_OVERLOADED: 429,
  CONTEXT_TOO_LONG: 400,
  SHUTTING_DOWN: 503,
  GRAMMAR_FAILED: 400,
  UNSUPPORTED_REQUEST: 400,
  ENGINE_FAILED: 500,
};

const failureCode: Readonly<Record<FailureCode, string>> = {
  NOT_READY: 'not_ready',
  KV_OVERLOADED: 'kv_overloaded',
  CONTEXT_TOO_LONG: 'context_length_exceeded',
  SHUTTING_DOWN: 'shutting_down',
  GRAMMAR_FAILED: 'grammar_failed',
  UNSUPPORTED_REQUEST: 'unsupported_request',
  ENGINE_FAILED: 'engine_failed',
};

/** The response to a request that the cluster refused or lost. */
export function fromFailure(failure: {
  readonly code: FailureCode;
  readonly message: string;
  readonly retryAfterMs: number | undefined;
  readonly cause?: RefusalCause;
}): ApiError {
  return new ApiError(failureStatus[failure.code], failure.message, {
    code: failureCode[failure.code],
    retryAfterMs: failure.retryAfterMs,
    refusal: failure.cause && describeCause(failure.cause),
  });
}

/** The refusal with the names and units of the HTTP API. */
export function describeCause(cause: RefusalCause): object {
  return Object.fromEntries(
    Object.entries(cause).map(([name, value]) => {
      const spelled = name.replace(/Us(Max)?$/, 'Ms$1').replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);
      return [spelled, typeof value === 'number' && name.includes('Us') ? Math.round(value) / 1000 : value];
    }),
  );
}

/** The response to a thrown value. Internal errors become a 500 without details. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(500, 'Cannot serve request: internal error; the log has the details under this request id', {
    code: 'internal_error',
  });
}

/** The headers of an error response. */
export function errorHeaders(error: ApiError, requestId: string): Record<string, string> {
  const headers: Record<string, string> = { 'content-type': 'application/json', 'x-request-id': requestId };
  if (error.retryAfterMs !== undefined)
    headers['retry-after'] = String(Math.max(1, Math.ceil(error.retryAfterMs / 1000)));
  if (error.status === 401) headers['www-authenticate'] = 'Bearer';
  if (error.allow !== undefined) headers.allow = error.allow;
  // The rest of the body is not read, so that the connection cannot carry another request.
  if (error.status === 413 || error.status === 415) headers.connection = 'close';
  return headers;
}

const clientIdPattern = /^[\w.:/-]{1,128}$/;

/** The client's own id of a request; undefined if it sent none, or an invalid one. */
export function clientRequestId(header: string | undefined): string | undefined {
  return header !== undefined && clientIdPattern.test(header) ? header : undefined;
}

/** A new id for an HTTP request. */
export function newRequestId(): string {
  return `req-${randomUUID().replaceAll('-', '')}`;
}

/** The id in a response body: the request id with the OpenAI prefix. */
export function answerId(prefix: 'chatcmpl' | 'cmpl' | 'msg' | 'resp', requestId: string): string {
  return requestId.replace(/^req/, prefix);
}

/** The request id, given itself or the id of a response. */
export function requestIdOf(id: string): string {
  return id.replace(/^(chatcmpl|cmpl|msg|resp)-/, 'req-');
}

function errorType(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 404) return 'not_found_error';
  if (status === 429) return 'rate_limit_error';
  if (status < 500) return 'invalid_request_error';
  return 'server_error';
}
