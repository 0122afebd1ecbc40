// Errors in the shape of the Anthropic protocol.
import type { ApiError } from '../http/errors.ts';

const types: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  500: 'api_error',
  503: 'overloaded_error',
};

/** The body of an error; it has the type that clients of the protocol expect for its status. */
export function messageError({ status, message, code, param, refusal }: ApiError, requestId: string) {
  const details = { ...(code !== undefined && { code }), ...(param !== undefined && { param }) };
  return {
    type: 'error',
    error: {
      type: types[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error'),
      message,
      ...details,
      ...(refusal && { refusal }),
    },
    request_id: requestId,
  };
}
