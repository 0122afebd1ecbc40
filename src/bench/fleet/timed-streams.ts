// Streamed completions at a steady rate, over raw sockets; all figures include the client's own time.
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

export interface StreamTimes {
  /** From sending to the first event. */
  readonly firstMs: number;
  /** From sending to the end of the stream. */
  readonly wholeMs: number;
}

export interface StreamLoad {
  readonly url: string;
  readonly model: string;
  /** Requests per second. */
  readonly rate: number;
  readonly seconds: number;
  /** Tokens of each prompt. */
  readonly prompt: number;
  /** Tokens of each output. */
  readonly generate: number;
}

const endOfChunks = '\r\n0\r\n\r\n';
/** Prompts repeat after so many. */
const prompts = 64;

/** Returns the times of each request, in the order of sending. @throws Error if a request fails */
export async function timedStreams(load: StreamLoad): Promise<readonly StreamTimes[]> {
  const requests = Array.from({ length: prompts }, (_, i) => requestOf(load, i));
  const connections = new Connections(load.url);
  const running: Promise<StreamTimes>[] = [];
  const startMs = performance.now();
  try {
    for (let i = 0; i < load.rate * load.seconds; i++) {
      const waitMs = startMs + (i * 1000) / load.rate - performance.now();
      if (waitMs > 0) await sleep(waitMs);
      const sent = connections.send(requests[i % prompts]);
      // The first failure is reported at the end.
      sent.catch(() => {});
      running.push(sent);
    }
    return await Promise.all(running);
  } finally {
    connections.close();
  }
}

/** Sends `count` requests, some at once, each when another one has ended. @throws Error if a request fails */
export async function saturatingStreams(load: StreamLoad, count: number, lanes: number): Promise<void> {
  const connections = new Connections(load.url);
  let sent = 0;
  const lane = async (): Promise<void> => {
    while (sent < count) await connections.send(requestOf(load, sent++ % prompts));
  };
  try {
    await Promise.all(Array.from({ length: lanes }, lane));
  } finally {
    connections.close();
  }
}

function requestOf({ url, model, prompt, generate }: StreamLoad, i: number): string {
  const ids = Array.from({ length: prompt }, (_, at) => 1000 + ((i * 7919 + at * 13) % 3000));
  const body = JSON.stringify({ model, prompt: ids, max_tokens: generate, temperature: 0, stream: true });
  const head = `POST /v1/completions HTTP/1.1\r\nhost: ${new URL(url).host}\r\ncontent-type: application/json\r\n`;
  return `${head}content-length: ${body.length}\r\n\r\n${body}`;
}

/** Connections to one server, each with one request at a time. */
class Connections {
  readonly #url: URL;
  readonly #idle: Socket[] = [];
  readonly #all = new Set<Socket>();

  constructor(url: string) {
    this.#url = new URL(url);
  }

  send(request: string): Promise<StreamTimes> {
    const socket = this.#idle.pop() ?? this.#open();
    return new Promise((resolve, reject) => {
      const startMs = performance.now();
      let firstMs: number | undefined;
      let text = '';
      const fail = (why: string): void => {
        stop();
        socket.destroy();
        reject(new Error(`Cannot bench the fleet: a completion failed: ${why}`));
      };
      const onData = (piece: string): void => {
        text += piece;
        const nowMs = performance.now() - startMs;
        if (firstMs === undefined && text.includes('\ndata: {')) firstMs = nowMs;
        if (!text.endsWith(endOfChunks)) return;
        if (firstMs === undefined || !text.includes('data: [DONE]')) {
          fail(text.slice(0, 300));
          return;
        }
        stop();
        this.#idle.push(socket);
        resolve({ firstMs, wholeMs: nowMs });
      };
      const onError = ({ message }: Error): void => fail(message);
      const onClose = (): void => fail(text === '' ? 'the connection closed' : text.slice(0, 300));
      const stop = (): void => {
        socket.off('data', onData).off('error', onError).off('close', onClose);
      };
      socket.on('data', onData).on('error', onError).on('close', onClose);
      socket.write(request);
    });
  }

  #open(): Socket {
    const socket = connect({ host: this.#url.hostname, port: Number(this.#url.port), noDelay: true });
    this.#all.add(socket.setEncoding('latin1'));
    // The server may close an idle connection.
    const drop = (): void => {
      this.#all.delete(socket);
      const at = this.#idle.indexOf(socket);
      if (at !== -1) this.#idle.splice(at, 1);
    };
    return socket.on('error', drop).on('close', drop);
  }

  close(): void {
    for (const socket of this.#all) socket.destroy();
  }
}
