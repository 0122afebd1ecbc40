// Requests to the hub: the token goes to the endpoint alone, statuses become errors, silence is a cut connection.
import { HubError } from './errors.ts';
import type { HubReference } from './reference.ts';
import { connectionError, type Sleep, sleepUnlessAborted, TransientError } from './retry.ts';
import type { HubSettings } from './settings.ts';

const jsonBytesMax = 2 ** 25;
const silenceMsDefault = 30_000;

export interface HubClientOptions {
  readonly signal?: AbortSignal;
  readonly sleep?: Sleep;
  /** A connection that says nothing for so long counts as cut. */
  readonly silenceMs?: number;
}

export interface HubJson {
  readonly body: unknown;
  /** Address of the list's next page. */
  readonly next: string | undefined;
}

export interface HubStream {
  readonly status: number;
  readonly headers: Headers;
  readonly chunks: AsyncIterable<Uint8Array>;
  /** Ends the connection, wherever it is. */
  close(): void;
}

export class HubClient {
  readonly settings: HubSettings;
  readonly signal: AbortSignal;
  readonly sleep: Sleep;
  readonly #silenceMs: number;

  constructor(settings: HubSettings, options: HubClientOptions = {}) {
    this.settings = settings;
    this.signal = options.signal ?? new AbortController().signal;
    this.sleep = options.sleep ?? sleepUnlessAborted;
    this.#silenceMs = options.silenceMs ?? silenceMsDefault;
  }

  /** The same, ended by this signal. */
  until(signal: AbortSignal): HubClient {
    return new HubClient(this.settings, { signal, sleep: this.sleep, silenceMs: this.#silenceMs });
  }

  /** @throws TransientError, or HubError for what will not pass */
  async json(url: string, reference: HubReference): Promise<HubJson> {
    // A page elsewhere would be handed the token.
    if (new URL(url).origin !== new URL(this.settings.endpoint).origin)
      throw new HubError(
        'corrupt',
        `Cannot use ${reference.text}: the list of its files goes on at another host (${url})`,
      );
    const { headers, chunks } = await this.stream(url, reference, { accept: 'application/json' });
    const parts: Uint8Array[] = [];
    let bytes = 0;
    for await (const chunk of chunks) {
      bytes += chunk.byteLength;
      if (bytes > jsonBytesMax)
        throw new HubError('corrupt', `Cannot use ${reference.text}: an answer exceeds ${jsonBytesMax} bytes (${url})`);
      parts.push(chunk);
    }
    try {
      const next = /<([^>]+)>;\s*rel="?next"?/.exec(headers.get('link') ?? '')?.[1];
      return {
        body: JSON.parse(Buffer.concat(parts).toString('utf8')),
        next: next === undefined ? undefined : new URL(next, url).href,
      };
    } catch {
      throw new HubError('corrupt', `Cannot use ${reference.text}: the answer is no JSON (${url})`);
    }
  }

  /** The body of an answer of status 2xx. @throws TransientError also from its chunks; HubError for what will not pass */
  async stream(url: string, reference: HubReference, headers: Record<string, string>): Promise<HubStream> {
    const silence = new Silence(this.signal, this.#silenceMs);
    try {
      const response = await fetch(url, { headers: { ...this.#headers(), ...headers }, signal: silence.signal });
      if (!response.ok) {
        await response.body?.cancel();
        throw failureOf(response, reference, this.settings);
      }
      return {
        status: response.status,
        headers: response.headers,
        chunks: heard(response, silence),
        close: () => silence.close(),
      };
    } catch (error) {
      silence.end();
      throw error instanceof HubError ? error : silence.asked(error);
    }
  }

  #headers(): Record<string, string> {
    const { token } = this.settings;
    // Fetch drops `authorization` itself where a redirect leaves the endpoint's host. Ranges are of the bytes as they are stored.
    const fixed = { 'user-agent': 'kvasir', 'accept-encoding': 'identity' };
    return token === undefined ? fixed : { ...fixed, authorization: `Bearer ${token}` };
  }
}

/** Aborts when nothing was heard for a while, or when the caller's signal does. */
class Silence {
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal;
  readonly #timer: NodeJS.Timeout;
  readonly #limitMs: number;
  readonly #abort = (): void => this.#controller.abort();
  #silent = false;

  constructor(outer: AbortSignal, limitMs: number) {
    this.#outer = outer;
    this.#limitMs = limitMs;
    this.#timer = setTimeout(() => {
      this.#silent = true;
      this.#abort();
    }, limitMs);
    outer.addEventListener('abort', this.#abort);
    if (outer.aborted) this.#abort();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  heard(): void {
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

  asked(error: unknown): TransientError {
    return this.#silent ? new TransientError(`nothing came for ${this.#limitMs / 1000} s`) : connectionError(error);
  }
}

async function* heard(response: Response, silence: Silence): AsyncGenerator<Uint8Array> {
  try {
    for await (const chunk of response.body ?? []) {
      silence.heard();
      yield chunk;
    }
  } catch (error) {
    throw silence.asked(error);
  } finally {
    silence.end();
  }
}

function failureOf(response: Response, reference: HubReference, { endpoint, token }: HubSettings): Error {
  const { status, headers } = response;
  if (status === 408 || status === 429 || status >= 500)
    return new TransientError(`the hub answered ${status}`, retryAfterMs(headers.get('retry-after')));
  const page = `${endpoint}/${reference.id}`;
  const fail = (kind: 'refused' | 'missing' | 'corrupt', why: string): HubError =>
    new HubError(kind, `Cannot download ${reference.text}: ${why}`);
  if (status === 401) {
    const asked = token === undefined ? 'set HF_TOKEN' : 'the token given (HF_TOKEN) does not open it: check it';
    return fail(
      'refused',
      `there is no such repository or it is private or gated (401): ${asked}, and accept its licence at ${page}`,
    );
  }
  if (status === 403)
    return fail(
      'refused',
      `access is refused (403): set HF_TOKEN to a token with the right to it, and accept its licence at ${page}`,
    );
  if (status === 404)
    return fail('missing', `${missingPart(headers.get('x-error-code'), response.url, reference)} (404)`);
  return fail('corrupt', `the hub answered ${status} (${response.url})`);
}

function missingPart(code: string | null, url: string, { id, revision }: HubReference): string {
  if (code === 'RevisionNotFound') return `${id} has no revision '${revision}'`;
  if (code === 'EntryNotFound') return `${id} has no such file: ${url}`;
  // A hub that gives no code says it by the address.
  if (code === null && url.includes('/resolve/')) return `${id} has no such file: ${url}`;
  if (code === null && revision !== 'main') return `there is no repository ${id}, or it has no revision '${revision}'`;
  return `there is no repository ${id}`;
}

/** Seconds, or a date. */
function retryAfterMs(header: string | null): number | undefined {
  if (header === null) return undefined;
  const ms = /^\d+$/.test(header.trim()) ? 1000 * Number(header) : Date.parse(header) - Date.now();
  return Number.isFinite(ms) && ms > 0 ? ms : undefined;
}
