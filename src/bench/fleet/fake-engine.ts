// An engine with vLLM's protocol and no model: it reads and writes HTTP by hand, since its time is not the gateway's.
import { createServer, type Server, type Socket } from 'node:net';

/** One step of all streams: each gets a token. */
const stepMs = 10;

const headEnd = '\r\n\r\n';
const streamHead = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n';
const tokenChunk = chunkOf(eventOf(null));
const lastChunk = `${chunkOf(`${eventOf('length')}data: [DONE]\n\n`)}0\r\n\r\n`;
const models = { object: 'list', data: [{ id: 'fake', object: 'model', max_model_len: 131_072 }] };

interface Stream {
  readonly socket: Socket;
  left: number;
}

export class FakeEngine {
  readonly #server: Server;
  readonly #streams = new Set<Stream>();
  readonly #steps: NodeJS.Timeout;

  constructor() {
    this.#server = createServer({ noDelay: true }, (socket) => this.#serve(socket));
    this.#steps = setInterval(() => this.#step(), stepMs);
  }

  /** Resolves with the address. */
  listen(): Promise<string> {
    return new Promise((resolve) => {
      this.#server.listen(0, '127.0.0.1', () => {
        const address = this.#server.address();
        resolve(`http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`);
      });
    });
  }

  close(): void {
    clearInterval(this.#steps);
    this.#server.close();
    for (const { socket } of this.#streams) socket.destroy();
  }

  #serve(socket: Socket): void {
    let text = '';
    socket.setEncoding('latin1');
    socket.on('error', () => socket.destroy());
    socket.on('data', (piece: string) => {
      text += piece;
      const bodyAt = text.indexOf(headEnd) + headEnd.length;
      if (bodyAt < headEnd.length) return;
      const length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0);
      if (text.length < bodyAt + length) return;
      const request = text;
      text = '';
      this.#answer(socket, request);
    });
  }

  #answer(socket: Socket, request: string): void {
    if (request.startsWith('POST /v1/completions ')) {
      const left = Number(/"max_tokens":(\d+)/.exec(request)?.[1] ?? 16);
      const stream = { socket, left };
      socket.write(streamHead);
      this.#streams.add(stream);
      this.#advance(stream);
    } else if (request.startsWith('GET /v1/models ')) socket.write(answerOf('200 OK', JSON.stringify(models)));
    else if (request.startsWith('GET /health ')) socket.write(answerOf('200 OK', ''));
    else if (request.startsWith('GET /metrics ')) socket.write(answerOf('200 OK', metrics()));
    else socket.write(answerOf('404 Not Found', ''));
  }

  #step(): void {
    for (const stream of this.#streams) this.#advance(stream);
  }

  #advance(stream: Stream): void {
    stream.left--;
    if (stream.left > 0) stream.socket.write(tokenChunk);
    else {
      this.#streams.delete(stream);
      stream.socket.write(lastChunk);
    }
  }
}

function eventOf(finishReason: string | null): string {
  const choice = { index: 0, text: 'a', token_ids: [1000], finish_reason: finishReason, logprobs: null };
  const body = { id: 'cmpl-1', object: 'text_completion', created: 1, model: 'fake', choices: [choice] };
  return `data: ${JSON.stringify(body)}\n\n`;
}

function chunkOf(text: string): string {
  return `${text.length.toString(16)}\r\n${text}\r\n`;
}

function answerOf(status: string, body: string): string {
  return `HTTP/1.1 ${status}\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
}

function metrics(): string {
  const memory = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1048576"} 1.0';
  return `${memory}\n${cpuSample()}`;
}

/** The processor time of this process, as Prometheus reads it. */
export function cpuSample(): string {
  const { user, system } = process.cpuUsage();
  return `process_cpu_seconds_total ${(user + system) / 1e6}\n`;
}
