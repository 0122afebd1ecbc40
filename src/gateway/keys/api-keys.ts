// API keys: from a request's authorization to its caller. Keys are compared as hashes, in constant time.
import { createHash, timingSafeEqual } from 'node:crypto';
import { ApiError } from '../http/errors.ts';
import { anyCaller, type Caller } from './caller.ts';
import type { KeyEntry } from './keys-file.ts';

export interface PlainKeys {
  /** Keys of `--api-key`. The only key of a server is an admin key; of several, none is. */
  readonly users: readonly string[];
  readonly admins: readonly string[];
}

/** Checks `Authorization: Bearer KEY`. Without configured keys every caller is accepted. */
export class ApiKeys {
  readonly #plain: readonly KeyEntry[];
  #entries: readonly KeyEntry[];
  /** A keys file without keys accepts no caller. */
  readonly #required: boolean;

  /** @param file entries of the keys file; undefined: there is none */
  constructor({ users, admins }: PlainKeys, file?: readonly KeyEntry[]) {
    const role = users.length === 1 && admins.length === 0 && file === undefined ? 'admin' : 'user';
    this.#plain = [...users.map((key) => plainEntry(key, role)), ...admins.map((key) => plainEntry(key, 'admin'))];
    this.#entries = [...this.#plain, ...(file ?? [])];
    this.#required = this.#plain.length > 0 || file !== undefined;
  }

  /** True if callers can be told apart. */
  get areSeveral(): boolean {
    return this.#entries.length > 1;
  }

  /** True if callers need a key. */
  get areRequired(): boolean {
    return this.#required;
  }

  /** Takes the new entries of the keys file. Requests that run keep the caller that they began with. */
  replaceFile(file: readonly KeyEntry[]): void {
    this.#entries = [...this.#plain, ...file];
  }

  /** True if `callerOf` accepts the request. */
  accepts(authorization: string | undefined): boolean {
    try {
      this.callerOf(authorization);
      return true;
    } catch {
      return false;
    }
  }

  /** @throws ApiError 401 */
  callerOf(authorization: string | undefined): Caller {
    if (!this.#required) return anyCaller;
    const key = authorization?.match(/^Bearer\s+(.+)$/i)?.[1];
    if (key === undefined) {
      throw new ApiError(
        401,
        'Cannot authorise: no API key: send the header Authorization: Bearer KEY, or x-api-key: KEY',
        {
          code: 'missing_api_key',
        },
      );
    }
    const given = digest(key);
    // All keys are compared, so that the time does not depend on the position of the key.
    const matches = this.#entries.map((entry) => timingSafeEqual(entry.digest, given));
    const entry = this.#entries[matches.indexOf(true)];
    if (entry === undefined)
      throw new ApiError(401, 'Cannot authorise: the API key is unknown', { code: 'invalid_api_key' });
    return entry.caller;
  }

  /** The caller of this name. Of a key that was removed: a user without limits of its own. */
  callerNamed(name: string): Caller {
    if (!this.#required) return anyCaller;
    const known = this.#entries.find(({ caller }) => caller.name === name)?.caller;
    return known ?? { name, role: 'user', cacheGroup: `key ${name}`, limits: {} };
  }

  /** The caller of a key that another gateway has checked. Of a key that is not configured here: one that owns nothing. */
  callerOfOwner(owner: string): Caller {
    if (!this.#required) return anyCaller;
    return this.callerWithOwner(owner) ?? this.callerNamed(`unknown ${owner}`);
  }

  /** Undefined if no key with that owner is configured. */
  callerWithOwner(owner: string): Caller | undefined {
    return this.#entries.find(({ digest: own }) => ownerName(own) === owner)?.caller;
  }

  /** The owner of stored data: stable when the key gets another name, and does not reveal the key. */
  ownerOf(name: string): string {
    const entry = this.#entries.find(({ caller }) => caller.name === name);
    return entry === undefined ? name : ownerName(entry.digest);
  }

  /** The owner itself when its key is no longer configured; no caller has that name. */
  nameOf(owner: string): string {
    return this.callerWithOwner(owner)?.name ?? owner;
  }
}

/** The header `authorization`, or else the key of the header `x-api-key`, which Anthropic's clients send. */
export function authorizationOf(authorization: string | undefined, key: string | undefined): string | undefined {
  return authorization ?? (key === undefined ? undefined : `Bearer ${key}`);
}

/** @throws ApiError 403 unless the caller is an admin */
export function requireAdmin(caller: Caller, what: string): void {
  if (caller.role === 'admin') return;
  throw new ApiError(403, `Cannot ${what}: the key '${caller.name}' is not an admin key`, { code: 'admin_required' });
}

function plainEntry(key: string, role: Caller['role']): KeyEntry {
  const hash = digest(key);
  const name = `key-${createHash('sha256').update(hash).digest('hex').slice(0, 8)}`;
  return { digest: hash, caller: { name, role, cacheGroup: `key ${name}`, limits: {} } };
}

function ownerName(keyDigest: Buffer): string {
  return `owner ${createHash('sha256').update(keyDigest).digest('hex').slice(0, 32)}`;
}

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}
