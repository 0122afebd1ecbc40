// What the path of a request says about its protocol: whether it generates, and the shape of its errors.
import { messageError } from '../anthropic/message-errors.ts';
import type { ApiError } from './errors.ts';

const generatingPaths: ReadonlySet<string> = new Set([
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/embeddings',
  '/v1/rerank',
  '/v1/messages',
  '/v1/responses',
]);

/** True if requests to the path take places of the queue. */
export function isGenerating(path: string): boolean {
  return generatingPaths.has(path);
}

const isMessages = (path: string): boolean => /^\/v1\/messages(\/|$)/.test(path);

/** The headers that return the id of a request. */
export function idHeaders(path: string): readonly string[] {
  return isMessages(path) ? ['x-request-id', 'request-id'] : ['x-request-id'];
}

/** An error in the shape of Anthropic below `/v1/messages`, else of OpenAI. */
export function errorBody(path: string, error: ApiError, requestId: string): object {
  return isMessages(path) ? messageError(error, requestId) : error.body();
}
