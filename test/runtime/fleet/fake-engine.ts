// A fake engine in this process that speaks the protocols of vLLM or SGLang over HTTP and ZMTP, with faults on demand.
import { createServer as createHttp, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createTcp, type Socket, type Server as TcpServer } from 'node:net';
import type { EngineKind } from '../../../src/core/protocol/instance-report.ts';
import { encodeMsgpack, type Packed } from '../../../src/runtime/fleet/msgpack.ts';
import { ZmtpConnection } from '../../../src/runtime/fleet/zmtp.ts';

export interface FakeEngineOptions {
  /** Of SGLang, which states it. */
  readonly role?: 'prefill' | 'decode';
  readonly kind?: EngineKind;
  readonly blockTokens?: number;
  readonly contextTokens?: number;
  readonly model?: string;
  /** Of SGLang: it schedules by priority, in this order of values. */
  readonly priorities?: 'largest-first' | 'smallest-first';
  /** Events as positional arrays, as earlier versions publish them. */
  readonly positional?: boolean;
  /** Without an address for replays. */
  readonly noReplay?: boolean;
  /** Of SGLang: where it states that it pushes its load. */
  readonly loadPort?: number;
  /** Time to the first token of a stream. */
  readonly prefillMs?: number;
}

interface Call {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly stops: readonly number[];
  readonly salt: string | undefined;
  readonly id: string;
  /** The end-of-sequence tokens of the engine do not end the output. */
  readonly ignoresEos: boolean;
  readonly priority: number | undefined;
  /** Fields of the call about a hand-off. */
  readonly handOff: Readonly<Record<string, unknown>> | undefined;
  readonly stream: boolean;
}

/** The next token: a function of the last one and of the number of tokens, so that any engine continues alike. */
export function nextToken(sequence: readonly number[]): number {
  return 10 + (((sequence.at(-1) ?? 0) * 31 + sequence.length * 7) % 1000);
}

const end = Buffer.alloc(8, 0xff);

export class FakeEngine {
  readonly #options: FakeEngineOptions;
  readonly #http: Server;
  readonly #pub: TcpServer;
  readonly #router: TcpServer;
  readonly #subscribers = new Set<ZmtpConnection>();
  readonly #sockets = new Set<Socket>();
  readonly #held = new Map<string, bigint>();
  readonly #log: { readonly number: number; readonly payload: Buffer }[] = [];
  #number = 0;
  #hash = 2n ** 63n;
  /** Requests as they arrived, and the ids of those that their clients closed. */
  readonly calls: Call[] = [];
  readonly closed: string[] = [];
  replays = 0;
  /** Requests for /tokenize. */
  tokenized = 0;
  /** Requests for /metrics. */
  polls = 0;
  /** Faults: tokens after which a stream breaks once; a status for all requests; batches to swallow; no tokens at all. */
  breakAfter: number | undefined;
  status = 200;
  /** Tokens after which streams stall. */
  stallAfter = Number.POSITIVE_INFINITY;
  /** The same, by the id of the request. */
  stallsAt: (id: string) => number = () => Number.POSITIVE_INFINITY;
  /** Calls to refuse for load. */
  refusals = 0;
  dropBatches = 0;
  isHanging = false;
  /** Prompt tokens of all calls that were cached. */
  foundTokens = 0;
  /** Calls that are no streams get no answer. */
  isPrefillHanging = false;
  isUnhealthy = false;
  /** Batches that a replay still has. */
  kept = Number.POSITIVE_INFINITY;

  constructor(options: FakeEngineOptions = {}) {
    this.#options = options;
    this.#http = createHttp((request, response) => void this.#serve(request, response));
    this.#http.on('connection', (socket) => this.#track(socket));
    this.#pub = createTcp((socket) => {
      this.#track(socket);
      const connection = new ZmtpConnection(socket, 'PUB', {
        onMessage: ([frame]) => void (frame?.[0] === 1 && this.#subscribers.add(connection)),
        onClose: () => void this.#subscribers.delete(connection),
      });
    });
    this.#router = createTcp((socket) => {
      this.#track(socket);
      const connection = new ZmtpConnection(socket, 'ROUTER', {
        onMessage: (frames) => this.#replay(connection, Number(frames.at(-1)?.readBigUInt64BE() ?? 0)),
        onClose: () => {},
      });
    });
  }

  static async start(options?: FakeEngineOptions): Promise<FakeEngine> {
    const engine = new FakeEngine(options);
    await Promise.all([engine.#http, engine.#pub, engine.#router].map(listening));
    return engine;
  }

  get url(): string {
    return `http://127.0.0.1:${portOf(this.#http)}`;
  }

  /** Blocks in its prefix cache. */
  get blocks(): number {
    return this.#held.size;
  }

  get hasSubscriber(): boolean {
    return this.#subscribers.size > 0;
  }

  /** Dies: all connections break, and no other one is accepted. */
  async kill(): Promise<void> {
    for (const server of [this.#http, this.#pub, this.#router]) server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Breaks the connections of subscribers. */
  cutSubscribers(): void {
    for (const subscriber of this.#subscribers) subscriber.close();
  }

  clear(): void {
    this.#held.clear();
    this.#publish([this.#event('AllBlocksCleared', {})]);
  }

  /** Evicts the blocks that were stored last. */
  evict(count: number): void {
    const hashes: bigint[] = [];
    for (const key of [...this.#held.keys()].slice(-count)) {
      hashes.push(this.#held.get(key) ?? 0n);
      this.#held.delete(key);
    }
    this.#publish([this.#event('BlockRemoved', { block_hashes: hashes, medium: 'GPU' })]);
  }

  get #blockTokens(): number {
    return this.#options.blockTokens ?? 16;
  }

  get #isVllm(): boolean {
    return (this.#options.kind ?? 'vllm') === 'vllm';
  }

  #track(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('close', () => this.#sockets.delete(socket));
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = request.url ?? '';
    if (request.method === 'GET') {
      const answer = this.#describe(path);
      response.writeHead(answer === undefined ? 404 : path === '/health' && this.isUnhealthy ? 503 : 200);
      response.end(answer ?? '{"detail":"Not Found"}');
      return;
    }
    let text = '';
    for await (const part of request) text += part;
    if (path === '/tokenize') {
      this.#tokenize(JSON.parse(text), response);
      return;
    }
    const call = this.#isVllm ? vllmCall(JSON.parse(text), request) : sglangCall(JSON.parse(text));
    this.calls.push(call);
    response.on('close', () => void (response.writableFinished || this.closed.push(call.id)));
    if (this.refusals > 0) {
      this.refusals--;
      response.writeHead(429);
      response.end();
      return;
    }
    if (this.status !== 200) {
      response.writeHead(this.status);
      response.end(JSON.stringify({ error: { message: `status ${this.status} on demand`, code: this.status } }));
      return;
    }
    if (!call.stream) {
      if (this.isPrefillHanging) return;
      await new Promise((resolve) => setImmediate(resolve));
      response.writeHead(200, { 'content-type': 'application/json' });
      this.#store(call.prompt, call.salt);
      const params = { do_remote_prefill: true, remote_request_id: call.id, remote_block_ids: [1, 2] };
      response.end(JSON.stringify({ choices: [], ...(this.#isVllm && { kv_transfer_params: params }) }));
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    if (this.isHanging) return;
    await this.#generate(call, response);
  }

  /** Token ids of a text are its character codes. */
  #tokenize({ prompt, messages }: Record<string, unknown>, response: ServerResponse): void {
    this.tokenized++;
    const text = typeof prompt === 'string' ? prompt : JSON.stringify(messages);
    const tokens = Array.from(text, (character) => character.codePointAt(0) ?? 0);
    response.writeHead(this.status, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ tokens, count: tokens.length, max_model_len: 4096 }));
  }

  async #generate({ prompt, maxTokens, stops, salt, id }: Call, response: ServerResponse): Promise<void> {
    const { prefillMs } = this.#options;
    if (prefillMs !== undefined) await new Promise((resolve) => setTimeout(resolve, prefillMs));
    const cachedTokens = this.#store(prompt, salt);
    this.foundTokens += cachedTokens;
    const sequence = [...prompt];
    for (let count = 1; count <= maxTokens; count++) {
      await new Promise((resolve) => setImmediate(resolve));
      if (response.destroyed || count > Math.min(this.stallAfter, this.stallsAt(id))) return;
      if (this.breakAfter !== undefined && count > this.breakAfter) {
        this.breakAfter = undefined;
        response.socket?.destroy();
        return;
      }
      const token = nextToken(sequence);
      sequence.push(token);
      const reason = stops.includes(token) ? 'stop' : count === maxTokens ? 'length' : undefined;
      const output = sequence.slice(prompt.length);
      const chunk = this.#isVllm
        ? {
            object: 'text_completion',
            choices: [{ index: 0, text: ` ${token}`, token_ids: [token], finish_reason: reason ?? null }],
          }
        : {
            ...{ text: output.map((each) => ` ${each}`).join(''), output_ids: output },
            meta_info: {
              finish_reason: reason === undefined ? null : { type: reason },
              ...{ cached_tokens: cachedTokens, completion_tokens: output.length },
            },
          };
      response.write(`data: ${JSON.stringify(chunk)}\n\n`);
      if (reason !== undefined) break;
    }
    this.#store(sequence, salt);
    response.end('data: [DONE]\n\n');
  }

  /** Caches the full blocks of a sequence. Returns the tokens that were cached before. */
  #store(sequence: readonly number[], salt: string | undefined): number {
    const { blockTokens } = { blockTokens: this.#blockTokens };
    let parent: bigint | undefined;
    let cached = 0;
    const hashes: bigint[] = [];
    let first = 0;
    let firstParent: bigint | undefined;
    for (let from = 0; from + blockTokens <= sequence.length; from += blockTokens) {
      const key = `${salt ?? ''}:${sequence.slice(0, from + blockTokens).join()}`;
      const known = this.#held.get(key);
      if (known !== undefined) cached = from + blockTokens;
      else {
        if (hashes.length === 0) [first, firstParent] = [from, parent];
        this.#held.set(key, ++this.#hash);
        hashes.push(this.#hash);
      }
      parent = this.#held.get(key);
    }
    if (hashes.length === 0) return cached;
    const tokens = sequence.slice(first, first + hashes.length * blockTokens);
    const salted = salt !== undefined && first === 0;
    const stored = {
      ...{ block_hashes: hashes, parent_block_hash: firstParent, token_ids: tokens, block_size: blockTokens },
      ...{ lora_id: undefined, medium: 'GPU', lora_name: undefined },
      ...(salted &&
        (this.#isVllm ? { extra_keys: hashes.map((_, i) => (i === 0 ? [salt] : undefined)) } : { cache_salt: salt })),
    };
    this.#publish([this.#event('BlockStored', stored)]);
    return cached;
  }

  #event(type: string, fields: Record<string, Packed>): Packed {
    return this.#options.positional === true ? [type, ...Object.values(fields)] : { type, ...fields };
  }

  #publish(events: readonly Packed[]): void {
    const number = this.#number++;
    const payload = encodeMsgpack([performance.timeOrigin + performance.now(), events, 0]);
    this.#log.push({ number, payload });
    if (this.dropBatches > 0) {
      this.dropBatches--;
      return;
    }
    for (const subscriber of this.#subscribers) subscriber.send([Buffer.alloc(0), numbered(number), payload]);
  }

  #replay(connection: ZmtpConnection, from: number): void {
    this.replays++;
    const none = Buffer.alloc(0);
    const kept = this.#log.slice(-Math.min(this.kept, this.#log.length) || this.#log.length);
    for (const { number, payload } of this.kept === 0 ? [] : kept)
      if (number >= from) connection.send([none, none, numbered(number), payload]);
    connection.send([none, none, end, none]);
  }

  #describe(path: string): string | undefined {
    const { contextTokens = 4096, model = 'fake', priorities } = this.#options;
    const replay = this.#options.noReplay === true ? undefined : portOf(this.#router);
    switch (path) {
      case '/health':
        return '';
      case '/v1/models':
        return JSON.stringify({ object: 'list', data: [{ id: model, max_model_len: contextTokens }] });
      case '/metrics':
        this.polls++;
        return this.#isVllm ? vllmMetrics(this.#blockTokens) : sglangMetrics;
      case '/kv_event_sources':
        return this.#isVllm
          ? JSON.stringify({
              0: {
                ...{ enable_kv_cache_events: true, publisher: 'zmq', endpoint: `tcp://*:${portOf(this.#pub)}` },
                ...{ replay_endpoint: replay === undefined ? null : `tcp://*:${replay}`, topic: '' },
              },
            })
          : undefined;
      case '/query':
        return JSON.stringify({ 0: { engine_id: 'fake-engine', worker_addr: {} } });
      case '/server_info':
        return this.#isVllm
          ? undefined
          : JSON.stringify({
              ...{ disaggregation_mode: this.#options.role ?? 'null', disaggregation_bootstrap_port: 8997 },
              ...{ max_total_num_tokens: 65536, page_size: this.#blockTokens, dp_size: 1 },
              ...(priorities !== undefined && {
                enable_priority_scheduling: true,
                schedule_low_priority_values_first: priorities === 'smallest-first',
              }),
              kv_events: {
                ...{ publisher: 'zmq', endpoint_host: '*', endpoint_port_base: portOf(this.#pub), topic: '' },
                ...{ block_size: this.#blockTokens, dp_size: 1, replay_endpoint_port_base: replay },
                ...(this.#options.loadPort !== undefined && {
                  ...{ load_endpoint_port_base: this.#options.loadPort, load_topic: 'load' },
                }),
              },
            });
      default:
        return undefined;
    }
  }
}

function vllmCall(body: Record<string, never>, { headers }: IncomingMessage): Call {
  const {
    prompt,
    max_tokens: maxTokens,
    stop_token_ids: stops,
    cache_salt: salt,
    kv_transfer_params,
    stream,
    priority,
    ignore_eos: ignoresEos,
  } = body;
  return {
    ignoresEos,
    prompt,
    maxTokens,
    stops,
    salt,
    priority,
    id: String(headers['x-request-id']),
    handOff: kv_transfer_params,
    stream,
  };
}

function sglangCall(body: Record<string, never>): Call {
  const {
    input_ids: prompt,
    sampling_params,
    cache_salt: salt,
    rid: id,
    stream,
    bootstrap_room: room,
    priority,
  } = body;
  const { max_new_tokens: maxTokens, stop_token_ids: stops, ignore_eos } = sampling_params as Record<string, never>;
  const handOff = room === undefined ? undefined : { host: body.bootstrap_host, port: body.bootstrap_port, room };
  return { prompt, maxTokens, stops, salt, priority, id, handOff, stream, ignoresEos: ignore_eos };
}

const vllmMetrics = (blockTokens: number): string => `# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="${blockTokens}",engine="0",num_gpu_blocks="4096"} 1.0
vllm:num_requests_running{engine="0",model_name="fake"} 3.0
vllm:num_requests_waiting{engine="0",model_name="fake"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.25
`;
const sglangMetrics = `sglang:num_running_reqs{model_name="fake"} 3.0
sglang:num_queue_reqs{model_name="fake"} 2.0
sglang:token_usage{model_name="fake"} 0.25
`;

function numbered(number: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(number));
  return bytes;
}

function portOf(server: Server | TcpServer): number {
  return (server.address() as AddressInfo).port;
}

function listening(server: Server | TcpServer): Promise<void> {
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve()));
}
