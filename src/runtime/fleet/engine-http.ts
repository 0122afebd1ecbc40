// HTTP towards one engine: short requests with a time limit, and streams of server-sent events over kept connections.
import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { codeOf, reasonOf } from './reason-of.ts';

/** Longer answers to short requests are cut; longer lines end a stream. */
const charactersMax = 2 ** 24;

/** Engines close connections that are idle for 5 s. */
const idleMsMax = 4_000;

/** Errors of a kept connection that the engine has closed. */
const staleCodes: ReadonlySet<string> = new Set(['ECONNRESET', 'EPIPE']);

export interface EngineAnswer {
  readonly status: number;
  readonly body: string;
}

export interface PostHandler {
  /** The data of the events that have arrived together, in order. */
  onEvents(data: readonly string[]): void;
  /** The engine answers with something else than a stream of events. */
  onAnswer(answer: EngineAnswer): void;
  /** The stream has ended: `why` unless the engine has completed it. */
  onEnd(why: string | undefined): void;
}

export class EngineHttp {
  readonly url: URL;
  readonly #headers: Record<string, string>;
  readonly #agent: HttpAgent;

  constructor(url: string, apiKey: string | undefined) {
    this.url = new URL(url);
    this.#headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
    const options = { keepAlive: true, maxFreeSockets: 64, timeout: idleMsMax };
    this.#agent = this.url.protocol === 'https:' ? new HttpsAgent(options) : new HttpAgent(options);
  }

  /** @throws Error in one line if the engine does not answer in time */
  get(path: string, timeoutMs: number): Promise<EngineAnswer> {
    return new Promise((resolve, reject) => {
      const call = this.#request(path, 'GET', {});
      const timer = setTimeout(
        () => call.destroy(new Error(`no answer to ${path} in ${timeoutMs / 1000} s`)),
        timeoutMs,
      );
      call.on('close', () => clearTimeout(timer));
      call.on('error', reject);
      call.on('response', (response) => void readAnswer(response).then(resolve, reject));
      call.end();
    });
  }

  /** @throws Error in one line unless the engine answers 200 with JSON */
  async getJson(path: string, timeoutMs: number): Promise<unknown> {
    const { status, body } = await this.get(path, timeoutMs);
    if (status !== 200) throw new Error(`${path} answers ${status}`);
    try {
      return JSON.parse(body);
    } catch {
      throw new Error(`${path} answers with something else than JSON`);
    }
  }

  /**
   * Posts `body` and reads the answer.
   * @param signal ends the call @throws Error in one line if the engine does not answer in time
   */
  ask(path: string, body: string, timeoutMs: number, signal?: AbortSignal): Promise<EngineAnswer> {
    return new Promise((resolve, reject) => {
      const end = (why: string): void => {
        stop();
        settle();
        reject(new Error(why));
      };
      const onAbort = (): void => end('the request has ended');
      const settle = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
      };
      const stop = this.post(path, {}, body, {
        onEvents: () => {},
        onAnswer: (answer) => {
          settle();
          resolve(answer);
        },
        onEnd: (why = `${path} answers with a stream`) => {
          settle();
          reject(new Error(why));
        },
      });
      // The handler is never called within `post`, which may throw.
      const timer = setTimeout(() => end(`no answer to ${path} in ${timeoutMs / 1000} s`), timeoutMs);
      signal?.addEventListener('abort', onAbort, { once: true });
      if (signal?.aborted === true) onAbort();
    });
  }

  /** Posts `body` and reads the answer, which may be a stream of events. Returns a function that ends it, after which no call follows. */
  post(path: string, headers: Readonly<Record<string, string>>, body: string, handler: PostHandler): () => void {
    let call: ClientRequest;
    let isOver = false;
    const once = (act: () => void): void => {
      if (isOver) return;
      isOver = true;
      act();
    };
    const end = (error: Error): void => once(() => handler.onEnd(reasonOf(error)));
    const send = (isRepeated: boolean): void => {
      const options = {
        ...{ 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(body)) },
        ...headers,
      };
      call = this.#request(path, 'POST', options, isRepeated);
      let isAnswered = false;
      call.on('error', (error) => {
        // The engine closed a kept connection before it read the request.
        const isStale = call.reusedSocket && staleCodes.has(codeOf(error) ?? '');
        if (isStale && !isRepeated && !isAnswered && !isOver) send(true);
        else end(error);
      });
      call.on('response', (response) => {
        isAnswered = true;
        const isStream = response.headers['content-type']?.startsWith('text/event-stream') === true;
        if (isStream) readEvents(response, handler, once);
        else void readAnswer(response).then((answer) => once(() => handler.onAnswer(answer)), end);
      });
      call.end(body);
    };
    send(false);
    return () => once(() => call.destroy());
  }

  close(): void {
    this.#agent.destroy();
  }

  /** @param isFresh over a new connection */
  #request(path: string, method: string, headers: Readonly<Record<string, string>>, isFresh = false): ClientRequest {
    const { protocol, hostname, port, pathname } = this.url;
    const call = (protocol === 'https:' ? httpsRequest : httpRequest)({
      ...{ protocol, hostname: hostname.replace(/^\[|\]$/g, ''), port, method, agent: isFresh ? false : this.#agent },
      path: `${pathname.replace(/\/$/, '')}${path}`,
      headers: { ...this.#headers, ...headers },
    });
    call.setNoDelay(true);
    return call;
  }
}

/** @param once runs the last call of the handler */
function readEvents(response: IncomingMessage, handler: PostHandler, once: (act: () => void) => void): void {
  const lines = new EventLines();
  response.setEncoding('utf8');
  response.on('data', (text: string) => {
    const data = lines.push(text);
    if (data.length > 0) handler.onEvents(data);
    if (lines.restCharacters > charactersMax) response.destroy(new Error('a line of the stream is too long'));
  });
  response.on('end', () => once(() => handler.onEnd(lines.isDone ? undefined : 'the stream ended early')));
  response.on('error', (error) => once(() => handler.onEnd(reasonOf(error))));
  response.on('close', () => once(() => handler.onEnd('the connection closed')));
}

async function readAnswer(response: IncomingMessage): Promise<EngineAnswer> {
  response.setEncoding('utf8');
  let body = '';
  for await (const text of response as AsyncIterable<string>) {
    body += text;
    // Leaving the loop closes the response.
    if (body.length >= charactersMax) break;
  }
  return { status: response.statusCode ?? 0, body };
}

/** Splits an event stream into the data of its events. Engines write one line of data for each. */
class EventLines {
  #rest = '';
  /** The end mark has arrived. */
  isDone = false;

  /** Characters of the line that has not ended. */
  get restCharacters(): number {
    return this.#rest.length;
  }

  push(text: string): readonly string[] {
    const lines = text.split('\n');
    lines[0] = this.#rest + lines[0];
    this.#rest = lines.pop() ?? '';
    const data: string[] = [];
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const value = line.slice(5).trim();
      if (value === '[DONE]') this.isDone = true;
      else data.push(value);
    }
    return data;
  }
}
