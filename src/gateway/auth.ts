// API keys: compared in constant time, whatever their lengths.
import { createHash, timingSafeEqual } from 'node:crypto';
import { ApiError } from './errors.ts';

/** Checks `Authorization: Bearer KEY`. With no keys configured every caller may pass. */
export class ApiKeys {
  readonly #digests: readonly Buffer[];

  constructor(keys: readonly string[]) {
    this.#digests = keys.map(digest);
  }

  /** Whether `check` would let the caller pass. */
  knows(authorization: string | undefined): boolean {
    try {
      this.check(authorization);
      return true;
    } catch {
      return false;
    }
  }

  /** Who calls: a name for each key, the same for all where there is none. @throws ApiError 401 */
  check(authorization: string | undefined): string {
    if (this.#digests.length === 0) return '';
    const key = authorization?.match(/^Bearer\s+(.+)$/i)?.[1];
    if (key === undefined) {
      throw new ApiError(401, 'Cannot authorise: no API key: send the header Authorization: Bearer KEY', {
        code: 'missing_api_key',
      });
    }
    const given = digest(key);
    // Every key is compared, so that time tells nothing about which one is near.
    const matches = this.#digests.map((known) => timingSafeEqual(known, given));
    if (!matches.includes(true))
      throw new ApiError(401, 'Cannot authorise: the API key is not known', { code: 'invalid_api_key' });
    return `key ${matches.indexOf(true)}`;
  }
}

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}
