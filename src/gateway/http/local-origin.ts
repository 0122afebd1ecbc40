// Web pages and a server without keys on loopback: a page of any site may send requests to it from the user's browser.

import type { IncomingMessage } from 'node:http';
import { oneLine } from '../../util/one-line.ts';
import { ApiError } from './errors.ts';

const validHost = /^[\w.:[\]-]+$/;
const loopbackHost = /^(localhost|127(\.\d{1,3}){3}|\[?::1\]?)$/i;

/** True if the server listens on loopback alone. */
export function isLoopback(host: string): boolean {
  return loopbackHost.test(host);
}

/**
 * The refusal of a request that a foreign web page can make a browser send: under another name of this host (DNS
 * rebinding), or with a body that needs no permission of CORS. Undefined: none.
 */
export function refusalOfForeignPage({ method, headers }: IncomingMessage): ApiError | undefined {
  const name = (headers.host ?? 'localhost').replace(/:\d+$/, '');
  // The app refuses an invalid host.
  if (!isLoopback(name) && validHost.test(name))
    return new ApiError(
      403,
      `Cannot serve host '${oneLine(name, 128)}': this server listens on loopback without keys, and serves localhost`,
      { code: 'host_not_allowed' },
    );
  if (method !== 'POST' || headers['content-length'] === '0') return undefined;
  const type = (headers['content-type'] ?? '').split(';')[0]?.trim().toLowerCase() ?? '';
  if (type === 'application/json' || type === 'multipart/form-data') return undefined;
  const given = type === '' ? 'it has none' : `it is '${type.slice(0, 64)}'`;
  return new ApiError(415, `Cannot read request: its content-type must be application/json: ${given}`, {
    code: 'unsupported_media_type',
    param: 'content-type',
  });
}
