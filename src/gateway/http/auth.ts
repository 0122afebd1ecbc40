// API keys: compared in constant time, whatever their lengths.
import { createHash, timingSafeEqual } from 'node:crypto';
import type { Owners } from './data-folder.ts';
import { ApiError } from './errors.ts';

/** Checks `Authorization: Bearer KEY`. With no keys configured every caller may pass. */
export class ApiKeys implements Owners {
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
    return tenantName(matches.indexOf(true));
  }

  /** Says nothing of the key, and is the same whatever others there are. */
  ownerOf(tenant: string): string {
    const key = this.#digests.findIndex((_, i) => tenantName(i) === tenant);
    return key < 0 ? tenant : ownerName(this.#digests[key] ?? Buffer.alloc(0));
  }

  /** Of a key that there is not any more: nobody's. */
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
