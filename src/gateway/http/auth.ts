// API keys, compared in constant time for any length.
import { createHash, timingSafeEqual } from 'node:crypto';
import type { Owners } from './data-folder.ts';
import { ApiError } from './errors.ts';

/** Checks `Authorization: Bearer KEY`. Without configured keys every caller is accepted. */
export class ApiKeys implements Owners {
  readonly #digests: readonly Buffer[];

  constructor(keys: readonly string[]) {
    this.#digests = keys.map(digest);
  }

  /** True if `check` accepts the caller. */
  accepts(authorization: string | undefined): boolean {
    try {
      this.check(authorization);
      return true;
    } catch {
      return false;
    }
  }

  /** Returns the tenant: one name per key, and the same name for all callers without keys. @throws ApiError 401 */
  check(authorization: string | undefined): string {
    if (this.#digests.length === 0) return '';
    const key = authorization?.match(/^Bearer\s+(.+)$/i)?.[1];
    if (key === undefined) {
      throw new ApiError(401, 'Cannot authorise: no API key: send the header Authorization: Bearer KEY', {
        code: 'missing_api_key',
      });
    }
    const given = digest(key);
    // All keys are compared, so that the time does not depend on the position of the key.
    const matches = this.#digests.map((known) => timingSafeEqual(known, given));
    if (!matches.includes(true))
      throw new ApiError(401, 'Cannot authorise: the API key is unknown', { code: 'invalid_api_key' });
    return tenantName(matches.indexOf(true));
  }

  /** A stable name that does not reveal the key and does not depend on the other keys. */
  ownerOf(tenant: string): string {
    const key = this.#digests.findIndex((_, i) => tenantName(i) === tenant);
    return key < 0 ? tenant : ownerName(this.#digests[key] ?? Buffer.alloc(0));
  }

  /** The owner itself when its key is no longer configured; no caller is that tenant. */
  tenantOf(owner: string): string {
    const key = this.#digests.findIndex((known) => ownerName(known) === owner);
    return key < 0 ? owner : tenantName(key);
  }
}

function tenantName(key: number): string {
  return `key ${key}`;
}

function ownerName(keyDigest: Buffer): string {
  return `owner ${createHash('sha256').update(keyDigest).digest('hex').slice(0, 32)}`;
}

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}
