// A scripted server of the streaming protocol, on a clock that the script controls.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A clock that advances on request; callers can await every read of it. */
export class ScriptedClock {
  #nowMs = 0;
  #reads = 0;
  #waiting: { readonly reads: number; readonly go: () => void }[] = [];

  readonly now = (): number => {
    this.#reads++;
    const due = this.#waiting.filter(({ reads }) => reads <= this.#reads);
    this.#waiting = this.#waiting.filter(({ reads }) => reads > this.#reads);
    for (const { go } of due) queueMicrotask(go);
    return this.#nowMs;
  };

  pass(ms: number): void {
    this.#nowMs += ms;
  }

  /** Runs an action that makes a caller read the clock, and waits for that read (or for several). */
  async untilRead(act: () => void, reads = 1): Promise<void> {
    const read = new Promise<void>((go) => this.#waiting.push({ reads: this.#reads + reads, go }));
    act();
    await read;
  }
}

export interface CompletionRequest {
  readonly prompt: readonly number[];
  readonly max_tokens: number;
  readonly model: string;
}

export interface Scripted {
  readonly url: string;
  readonly requests: CompletionRequest[];
  readonly headers: IncomingMessage['headers'][];
  close(): Promise<void>;
}

/** @param answer response to the n-th completion, n from 0 */
export async function scriptedServer(
  answer: (response: ServerResponse, request: CompletionRequest, n: number) => void | Promise<void>,
): Promise<Scripted> {
  const requests: CompletionRequest[] = [];
  const headers: IncomingMessage['headers'][] = [];
  const server = createServer(async (request, response) => {
    if (request.url === '/v1/models') {
      response.end(JSON.stringify({ data: [{ id: 'scripted' }] }));
    } else if (request.url === '/health') {
      response.end('{}');
    } else if (request.url === '/v1/completions') {
      const body = JSON.parse((await request.setEncoding('utf8').toArray()).join('')) as CompletionRequest;
      headers.push(request.headers);
      await answer(response, body, requests.push(body) - 1);
    } else {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  const close = (): Promise<void> => {
    server.closeAllConnections();
    return new Promise((closed) => server.close(() => closed()));
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, requests, headers, close };
}

export function event(body: object | '[DONE]'): string {
  return `data: ${body === '[DONE]' ? body : JSON.stringify(body)}\n\n`;
}

export const token = (text = 'x', finishReason: string | null = null): string =>
  event({ choices: [{ text, finish_reason: finishReason }] });

export function usage(promptTokens: number, completionTokens: number, cachedTokens = 0): string {
  const details = { prompt_tokens_details: { cached_tokens: cachedTokens } };
  return event({
    choices: [],
    usage: { prompt_tokens: promptTokens, completion_tokens: completionTokens, ...details },
  });
}

/** The complete response at once, as from an infinitely fast server. */
export function answerAtOnce(response: ServerResponse, request: CompletionRequest, cachedTokens = 0): void {
  const tokens = Array.from({ length: request.max_tokens }, () => token()).join('');
  const end = token('', 'length') + usage(request.prompt.length, request.max_tokens, cachedTokens) + event('[DONE]');
  response.writeHead(200, { 'content-type': 'text/event-stream' }).end(tokens + end);
}
