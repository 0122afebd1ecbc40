// Shared by all routes: the context of a call, and the response to a wrong method.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Context } from 'hono';
import type { Caller } from '../keys/caller.ts';
import { type EndpointCall, sloHeader } from '../openai/endpoint.ts';
import { ApiError } from './errors.ts';
import type { RequestLine } from './request-line.ts';
import type { SseStream } from './sse.ts';

export interface Env {
  Variables: {
    requestId: string;
    /** The header x-request-id of the response: the client's, or `requestId`. */
    responseId: string;
    startMs: number;
    caller: Caller;
    line: RequestLine;
    trace: string | undefined;
  };
}

/** What Node has for a request; absent without a connection: in tests, and for requests of other gateways. */
export interface NodeObjects {
  readonly incoming?: IncomingMessage;
  readonly outgoing?: ServerResponse;
  readonly attach?: (stream: SseStream) => void;
}

export function callOf(c: Context<Env>): EndpointCall {
  return {
    requestId: c.get('requestId'),
    startMs: c.get('startMs'),
    caller: c.get('caller'),
    line: c.get('line'),
    sloClass: c.req.header(sloHeader),
    batch: false,
    trace: c.get('trace'),
    signal: c.req.raw.signal,
    attach: (c.env as NodeObjects | undefined)?.attach,
  };
}

export function refuseMethod(c: Context<Env>, allowed: string): never {
  throw new ApiError(405, `Cannot ${c.req.method} ${c.req.path}: use ${allowed}`, {
    code: 'method_not_allowed',
    allow: allowed,
  });
}
