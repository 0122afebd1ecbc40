// HTTP requests to the hub: the token goes to the endpoint only, statuses become errors, an idle connection is cut.
import { HubError } from './errors.ts';
import type { HubReference } from './reference.ts';
import { connectionError, type HubContext, sleepUnlessAborted, TransientError } from './retry.ts';
import type { HubSettings } from './settings.ts';

const jsonBytesMax = 2 ** 25;
const idleMsDefault = 30_000;

export interface HubClientOptions {
  readonly signal?: AbortSignal;
  readonly sleep?: typeof sleepUnlessAborted;
  /** A connection without data for this long is cut. */
  readonly idleMs?: number;
}

export interface HubJson {
  readonly body: unknown;
  /** URL of the next page. */
  readonly next: string | undefined;
}

export interface HubStream {
  readonly status: number;
  readonly headers: Headers;
  readonly chunks: AsyncIterable<Uint8Array>;
  /** Ends the connection. */
  close(): void;
}

export class HubClient implements HubContext {
  readonly settings: HubSettings;
  readonly signal: AbortSignal;
  readonly #options: HubClientOptions;

  constructor(settings: HubSettings, options: HubClientOptions = {}) {
    this.settings = settings;
    this.signal = options.signal ?? new AbortController().signal;
    this.#options = options;
  }

  /** The same client with another signal. */
  withSignal(signal: AbortSignal): HubClient {
    return new HubClient(this.settings, { ...this.#options, signal });
  }

  async sleep(ms: number): Promise<void> {
    await (this.#options.sleep ?? sleepUnlessAborted)(ms, this.signal);
  }

  /** @throws TransientError, or HubError when a retry cannot help */
  async json(url: string, reference: HubReference): Promise<HubJson> {
    // A page on another host would receive the token.
    if (new URL(url).origin !== new URL(this.settings.endpoint).origin)
      throw new HubError(
        'corrupt',
        `Cannot use ${reference.text}: the next page of its file list is on another host (${url})`,
      );
    const { headers, chunks } = await this.stream(url, reference, { accept: 'application/json' });
    const parts: Uint8Array[] = [];
    let bytes = 0;
    for await (const chunk of chunks) {
      bytes += chunk.byteLength;
      if (bytes > jsonBytesMax)
        throw new HubError(
          'corrupt',
          `Cannot use ${reference.text}: a response exceeds ${jsonBytesMax} bytes (${url})`,
        );
      parts.push(chunk);
    }
    try {
      const next = /<([^>]+)>;\s*rel="?next"?/.exec(headers.get('link') ?? '')?.[1];
      return {
        body: JSON.parse(Buffer.concat(parts).toString('utf8')),
        next: next === undefined ? undefined : new URL(next, url).href,
      };
    } catch {
      throw new HubError('corrupt', `Cannot use ${reference.text}: the response is not JSON (${url})`);
    }
  }

  /**
   * The body of a 2xx response. @throws TransientError, also while the body is read; HubError when a retry cannot help
   */
  async stream(url: string, reference: HubReference, headers: Record<string, string>): Promise<HubStream> {
    const idle = new IdleTimeout(this.signal, this.#options.idleMs ?? idleMsDefault);
    try {
      const response = await fetch(url, { headers: { ...this.#headers(), ...headers }, signal: idle.signal });
      if (!response.ok) {
        await response.body?.cancel();
        throw statusError(response, reference, this.settings);
      }
      return {
        status: response.status,
        headers: response.headers,
        chunks: bodyOf(response, idle),
        close: () => idle.close(),
      };
    } catch (error) {
      idle.end();
      throw error instanceof HubError ? error : idle.failureOf(error);
    }
  }

  #headers(): Record<string, string> {
    const { token } = this.settings;
    // fetch drops `authorization` when a redirect leaves the endpoint's host. Ranges require the stored encoding.
    const fixed = { 'user-agent': 'kvasir', 'accept-encoding': 'identity' };
    return token === undefined ? fixed : { ...fixed, authorization: `Bearer ${token}` };
  }
}

/** Aborts when no data arrives within the limit, or when the caller's signal aborts. */
class IdleTimeout {
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal;
  readonly #timer: NodeJS.Timeout;
  readonly #limitMs: number;
  readonly #abort = (): void => this.#controller.abort();
  #isIdle = false;

  constructor(outer: AbortSignal, limitMs: number) {
    this.#outer = outer;
    this.#limitMs = limitMs;
    this.#timer = setTimeout(() => {
      this.#isIdle = true;
      this.#abort();
    }, limitMs);
    outer.addEventListener('abort', this.#abort);
    if (outer.aborted) this.#abort();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  restart(): void {
    this.#timer.refresh();
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#outer.removeEventListener('abort', this.#abort);
  }

  close(): void {
    this.end();
    this.#abort();
  }

  failureOf(error: unknown): TransientError {
    return this.#isIdle ? new TransientError(`no data arrived for ${this.#limitMs / 1000} s`) : connectionError(error);
  }
}

async function* bodyOf(response: Response, idle: IdleTimeout): AsyncGenerator<Uint8Array> {
  try {
    for await (const chunk of response.body ?? []) {
      idle.restart();
      yield chunk;
    }
  } catch (error) {
    throw idle.failureOf(error);
  } finally {
    idle.end();
  }
}

function statusError(response: Response, reference: HubReference, { endpoint, token }: HubSettings): Error {
  const { status, headers } = response;
  if (status === 408 || status === 429 || status >= 500)
    return new TransientError(`the hub answered ${status}`, retryAfterMs(headers.get('retry-after')));
  const page = `${endpoint}/${reference.id}`;
  const fail = (kind: 'refused' | 'missing' | 'corrupt', why: string): HubError =>
    new HubError(kind, `Cannot download ${reference.text}: ${why}`);
  if (status === 401) {
    const advice = token === undefined ? 'set HF_TOKEN' : 'the given token (HF_TOKEN) has no access: check it';
    return fail(
      'refused',
      `there is no such repository or it is private or gated (401): ${advice}, and accept its licence at ${page}`,
    );
  }
  if (status === 403)
    return fail(
      'refused',
      `access is refused (403): set HF_TOKEN to a token that has access, and accept its licence at ${page}`,
    );
  if (status === 404)
    return fail('missing', `${missingPart(headers.get('x-error-code'), response.url, reference)} (404)`);
  return fail('corrupt', `the hub answered ${status} (${response.url})`);
}

function missingPart(code: string | null, url: string, { id, revision }: HubReference): string {
  if (code === 'RevisionNotFound') return `${id} has no revision '${revision}'`;
  if (code === 'EntryNotFound') return `${id} has no such file: ${url}`;
  // Without an error code, the URL shows what is missing.
  if (code === null && url.includes('/resolve/')) return `${id} has no such file: ${url}`;
  if (code === null && revision !== 'main') return `there is no repository ${id}, or it has no revision '${revision}'`;
  return `there is no repository ${id}`;
}

/** Parses seconds or a date. */
function retryAfterMs(header: string | null): number | undefined {
  if (header === null) return undefined;
  const ms = /^\d+$/.test(header.trim()) ? 1000 * Number(header) : Date.parse(header) - Date.now();
  return Number.isFinite(ms) && ms > 0 ? ms : undefined;
}
