// A scripted server of the streaming protocol, on a clock that the script controls.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A clock that advances on request; callers can await every read of it. */
export class ScriptedClock {
  #nowMs = 0;
  #looks = 0;
  #waiting: { readonly looks: number; readonly go: () => void }[] = [];

  readonly now = (): number => {
    this.#looks++;
    const due = this.#waiting.filter(({ looks }) => looks <= this.#looks);
    this.#waiting = this.#waiting.filter(({ looks }) => looks > this.#looks);
    for (const { go } of due) queueMicrotask(go);
    return this.#nowMs;
  };

  pass(ms: number): void {
    this.#nowMs += ms;
  }

  /** Runs an action that makes a caller read the clock, and waits for that read. */
  async seen(act: () => void, looks = 1): Promise<void> {
    const looked = new Promise<void>((go) => this.#waiting.push({ looks: this.#looks + looks, go }));
    act();
    await looked;
  }
}

export interface AskedCompletion {
  readonly prompt: readonly number[];
  readonly max_tokens: number;
  readonly model: string;
}

export interface Scripted {
  readonly url: string;
  readonly asked: AskedCompletion[];
  readonly headers: IncomingMessage['headers'][];
  close(): Promise<void>;
}

/** @param answer response to the n-th completion, n from 0 */
export async function scriptedServer(
  answer: (response: ServerResponse, asked: AskedCompletion, n: number) => void | Promise<void>,
): Promise<Scripted> {
  const asked: AskedCompletion[] = [];
  const headers: IncomingMessage['headers'][] = [];
  const server = createServer(async (request, response) => {
    if (request.url === '/v1/models') {
      response.end(JSON.stringify({ data: [{ id: 'scripted' }] }));
    } else if (request.url === '/health') {
      response.end('{}');
    } else if (request.url === '/v1/completions') {
      const body = JSON.parse((await request.setEncoding('utf8').toArray()).join('')) as AskedCompletion;
      headers.push(request.headers);
      await answer(response, body, asked.push(body) - 1);
    } else {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  const close = (): Promise<void> => {
    server.closeAllConnections();
    return new Promise((closed) => server.close(() => closed()));
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked, headers, close };
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

/** The whole response at once, as from an infinitely fast server. */
export function answerAtOnce(response: ServerResponse, asked: AskedCompletion, cachedTokens = 0): void {
  const tokens = Array.from({ length: asked.max_tokens }, () => token()).join('');
  const end = token('', 'length') + usage(asked.prompt.length, asked.max_tokens, cachedTokens) + event('[DONE]');
  response.writeHead(200, { 'content-type': 'text/event-stream' }).end(tokens + end);
}
