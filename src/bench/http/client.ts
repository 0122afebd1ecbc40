// A streaming client that times one completion against any OpenAI endpoint.
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';

export interface Endpoint {
  /** With or without `/v1` at its end. */
  readonly url: string;
  readonly model: string;
  readonly apiKey: string | undefined;
  /** Milliseconds of a steady clock. */
  readonly now: () => number;
}

export interface TimedRequest {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  /** Fields of Kvasir; undefined: not sent. */
  readonly priority?: number;
  readonly sloClass?: string | undefined;
  /** Called once, when the first token has arrived. */
  readonly onFirstToken?: () => void;
}

/** Times in milliseconds since the request was sent. */
export interface TimedAnswer {
  /** Undefined: no status line arrived. */
  readonly status: number | undefined;
  /** Since the end of the request was sent. */
  readonly statusMs: number;
  readonly ttftMs: number | undefined;
  /** From the first token to the last. */
  readonly decodeMs: number;
  /** Gaps between chunks with tokens. */
  readonly gapsMs: readonly number[];
  /** As the server reports, else the number of chunks with tokens. */
  readonly outputTokens: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  /** Of an error event on the stream. */
  readonly errorCode: string | undefined;
  /** Status 200, and a stream that ended with `[DONE]`. */
  readonly complete: boolean;
}

interface UsageBody {
  readonly prompt_tokens?: number;
  readonly completion_tokens?: number;
  readonly prompt_tokens_details?: { readonly cached_tokens?: number } | null;
}

interface ChunkBody {
  readonly choices?: readonly { readonly text?: string; readonly finish_reason?: string | null }[];
  readonly usage?: UsageBody | null;
  readonly error?: { readonly code?: string | null };
}

/** The state of one stream. */
class StreamState {
  firstMs: number | undefined;
  lastMs = 0;
  usage: UsageBody | undefined;
  done = false;
  errorCode: string | undefined;
  readonly gapsMs: number[] = [];

  /** Reads one `data:` line. @throws SyntaxError if it is not JSON */
  take(data: string, nowMs: number): void {
    if (data === '[DONE]') {
      this.done = true;
      return;
    }
    const chunk = JSON.parse(data) as ChunkBody;
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.error !== undefined) this.errorCode = chunk.error.code ?? 'unknown';
    const choice = chunk.choices?.[0];
    // A chunk with only a finish reason has no token; an empty text without a reason may have one (half a character).
    if (choice === undefined || (choice.finish_reason && !choice.text)) return;
    if (this.firstMs === undefined) this.firstMs = nowMs;
    else this.gapsMs.push(nowMs - this.lastMs);
    this.lastMs = nowMs;
  }
}

export async function timedCompletion(endpoint: Endpoint, timed: TimedRequest): Promise<TimedAnswer> {
  const body = JSON.stringify({
    model: endpoint.model,
    prompt: timed.prompt,
    max_tokens: timed.maxTokens,
    temperature: 0,
    ignore_eos: true,
    stream: true,
    stream_options: { include_usage: true },
    priority: timed.priority,
  });
  const headers = timed.sloClass === undefined ? {} : { 'x-kvasir-slo': timed.sloClass };
  const startMs = endpoint.now();
  const progress = new StreamState();
  const { status, statusMs } = await stream(endpoint, { body, headers }, startMs, (data) => {
    const waiting = progress.firstMs === undefined;
    progress.take(data, endpoint.now() - startMs);
    if (waiting && progress.firstMs !== undefined) timed.onFirstToken?.();
  });
  const { usage, firstMs, lastMs, gapsMs } = progress;
  return {
    status,
    statusMs,
    ttftMs: firstMs,
    decodeMs: lastMs - (firstMs ?? lastMs),
    gapsMs,
    outputTokens: usage?.completion_tokens ?? (firstMs === undefined ? 0 : gapsMs.length + 1),
    promptTokens: usage?.prompt_tokens ?? timed.prompt.length,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    errorCode: progress.errorCode,
    complete: status === 200 && progress.done && progress.errorCode === undefined,
  };
}

/** Sends a completion; resolves when the response has ended in any way. */
function stream(
  endpoint: Endpoint,
  { body, headers: own }: { readonly body: string; readonly headers: Readonly<Record<string, string>> },
  startMs: number,
  onData: (data: string) => void,
): Promise<{ status: number | undefined; statusMs: number }> {
  const headers = {
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    ...authorization(endpoint.apiKey),
    ...own,
  };
  return new Promise((resolve) => {
    let answered = { status: undefined as number | undefined, statusMs: 0 };
    // A new connection: the server may close an idle one at the moment of reuse, and the request would count as lost.
    const send = isSecure(endpoint) ? httpsRequest : httpRequest;
    let sentMs = startMs;
    const outgoing = send(at(endpoint, '/v1/completions'), { method: 'POST', agent: false, headers }, (incoming) => {
      answered = { status: incoming.statusCode, statusMs: endpoint.now() - sentMs };
      readLines(incoming, onData);
      incoming.on('close', () => resolve(answered));
    });
    // Excludes the time in which this client sends a burst of hundreds of requests.
    outgoing.on('finish', () => {
      sentMs = endpoint.now();
    });
    outgoing.on('error', () => resolve(answered));
    outgoing.end(body);
  });
}

function readLines(incoming: IncomingMessage, onData: (data: string) => void): void {
  const lines = new SseLines();
  incoming.setEncoding('utf8');
  incoming.on('data', (text: string) => {
    try {
      for (const data of lines.push(text)) onData(data);
    } catch {
      // A chunk that is not JSON breaks the stream, which counts as incomplete.
      incoming.destroy();
    }
  });
}

const agents = [new HttpAgent({ keepAlive: true }), new HttpsAgent({ keepAlive: true })] as const;

/** Milliseconds of one GET over a persistent connection; undefined without a 200 response. */
export async function timedGet(endpoint: Endpoint, path: string): Promise<number | undefined> {
  const startMs = endpoint.now();
  const secure = isSecure(endpoint);
  const send = secure ? httpsRequest : httpRequest;
  return new Promise((resolve) => {
    const outgoing = send(at(endpoint, path), { agent: agents[secure ? 1 : 0] }, (incoming) => {
      incoming.resume();
      incoming.on('close', () => {
        resolve(incoming.complete && incoming.statusCode === 200 ? endpoint.now() - startMs : undefined);
      });
    });
    outgoing.on('error', () => resolve(undefined));
    outgoing.end();
  });
}

/** The first model that the endpoint lists. @throws Error when it lists none */
export async function firstModel(endpoint: Pick<Endpoint, 'url' | 'apiKey'>): Promise<string> {
  const { url } = endpoint;
  const response = await fetch(at(endpoint, '/v1/models'), { headers: authorization(endpoint.apiKey) }).catch(
    (error: unknown) => {
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error);
      throw new Error(`Cannot bench ${url}: the server does not answer: ${cause}`);
    },
  );
  if (!response.ok) throw new Error(`Cannot bench ${url}: /v1/models answered ${response.status}`);
  const { data } = (await response.json()) as { data?: { id: string }[] };
  const id = data?.[0]?.id;
  if (id === undefined) throw new Error(`Cannot bench ${url}: the server lists no model`);
  return id;
}

function authorization(apiKey: string | undefined): Record<string, string> {
  return apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
}

function isSecure({ url }: Pick<Endpoint, 'url'>): boolean {
  return url.startsWith('https:');
}

function at({ url }: Pick<Endpoint, 'url'>, path: string): URL {
  return new URL(url.replace(/\/+(v1\/*)?$/, '') + path);
}

/** Splits server-sent events into the payloads of their `data:` lines. */
export class SseLines {
  #rest = '';

  /** The payloads completed by this piece. */
  push(text: string): string[] {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() ?? '';
    return lines.filter((line) => line.startsWith('data:')).map((line) => line.slice('data:'.length).trim());
  }
}
