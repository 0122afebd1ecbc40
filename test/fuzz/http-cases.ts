// Mutated HTTP requests to a gateway in this process: each is served or refused in the shape of its protocol, never with a
// status of 500, and leaves no request behind.
import { setImmediate as turn } from 'node:timers/promises';
import { pino } from 'pino';
import type { ClusterPort, GenerationEvent, GenerationRequest } from '../../src/core/protocol/ports.ts';
import { createApp } from '../../src/gateway/http/app.ts';
import { accepted, finished, ScriptedPort, scriptedLogprobs, started, tokens } from '../gateway/scripted-port.ts';
import { gatewayOptions, noCluster } from '../gateway/world.ts';
import { mutateBytes, spellMutated } from './mutate.ts';
import { MutationRandom } from './mutation-random.ts';
import type { Json } from './seeds.ts';
import type { Fault, FuzzTarget } from './target.ts';

const caseMsMax = 5_000;
const turnsMax = 10_000;
/** The gateway of so many cases: its contexts, files and batches pile up within. */
const casesOfGateway = 200;

const messages: Json = [
  { role: 'system', content: 'be short' },
  { role: 'user', content: [{ type: 'text', text: 'hi' }] },
  { role: 'assistant', content: 'hello', tool_calls: [] },
  { role: 'user', content: 'go on' },
];
const parameters: Json = { type: 'object', properties: { a: { type: 'string' } } };
const model = 'bytes';
const seeds: readonly (readonly [path: string, body: Json])[] = [
  [
    '/v1/chat/completions',
    {
      ...{ model, messages, max_tokens: 5, temperature: 0.5, top_p: 0.9, seed: 3, n: 2, stop: ['x'], stream: false },
      ...{ logprobs: true, top_logprobs: 2, logit_bias: { 5: 1 }, stream_options: null, user: 'u', priority: 1 },
    },
  ],
  ['/v1/chat/completions', { model, messages, stream: true, stream_options: { include_usage: true }, max_tokens: 3 }],
  [
    '/v1/chat/completions',
    {
      ...{ model, messages, tool_choice: 'auto', tools: [{ type: 'function', function: { name: 'f', parameters } }] },
      response_format: { type: 'json_schema', json_schema: { name: 'n', schema: parameters } },
    },
  ],
  [
    '/v1/completions',
    {
      ...{ model, prompt: ['ab', 'c'], max_tokens: 4, echo: true, logprobs: 2, n: 1, best_of: 1, suffix: null },
      ...{ frequency_penalty: 0.5, presence_penalty: 0.5, repetition_penalty: 1.1, top_k: 4, min_p: 0.1 },
      ...{ stop_token_ids: [9], ignore_eos: true, return_token_ids: true, slo_class: 'fast' },
    },
  ],
  ['/v1/completions', { model, prompt: [1, 2, 3], max_tokens: 3, stream: true }],
  [
    '/v1/responses',
    { model, input: 'hi', instructions: 'short', max_output_tokens: 16, stream: false, temperature: 1, store: false },
  ],
  ['/v1/responses', { model, input: [{ role: 'user', content: [{ type: 'input_text', text: 'hi' }] }], stream: true }],
  ['/v1/responses/input_tokens', { model, input: 'hi' }],
  [
    '/v1/messages',
    {
      ...{ model, max_tokens: 5, system: 'short', stop_sequences: ['x'], stream: false, temperature: 1, top_k: 3 },
      messages: [{ role: 'user', content: [{ type: 'text', text: 'hi', cache_control: { type: 'ephemeral' } }] }],
      tools: [{ name: 'f', input_schema: parameters }],
    },
  ],
  ['/v1/messages', { model, max_tokens: 5, messages: [{ role: 'user', content: 'hi' }], stream: true }],
  ['/v1/messages/count_tokens', { model, messages: [{ role: 'user', content: 'hi' }] }],
  ['/tokenize', { model, prompt: 'hi', add_special_tokens: true }],
  ['/detokenize', { model, tokens: [104, 105] }],
  ['/v1/contexts', { model, prompt: 'a long prefix', ttl: 60 }],
  ['/v1/contexts', { model, messages, ttl: 60 }],
  ['/v1/batches', { input_file_id: 'file-1', endpoint: '/v1/chat/completions', completion_window: '24h' }],
  ['/api/instances/0/role', { role: 'prefill' }],
];
const getPaths = [
  ...['/v1/models', '/v1/models/bytes', '/v1/models/%ff', '/v1/contexts', '/v1/contexts/x', '/v1/files', '/v1/batches'],
  ...['/v1/files/file-1/content', '/v1/batches/x', '/health', '/ready', '/metrics', '/api/cluster', '/api/requests/x'],
];

/** Answers with a few tokens, more of them than allowed never. */
function script(request: GenerationRequest): readonly GenerationEvent[] {
  const ids = Array.from({ length: Math.min(request.maxTokens, 6) }, (_, i) => 97 + i);
  const width = request.sampling.topLogprobs;
  const outputs = ids.map((id) => tokens([id], width === undefined ? undefined : scriptedLogprobs([id], width)));
  const prompt = request.sampling.promptLogprobs
    ? [{ kind: 'prompt-logprobs', logprobs: scriptedLogprobs([...request.prompt].slice(1), width ?? 0) } as const]
    : [];
  return [accepted, started(0), ...prompt, ...outputs, finished('length')];
}

export class HttpCases implements FuzzTarget {
  readonly #seed: number;
  readonly outcomes: Record<string, number> = { served: 0, refused: 0, cut: 0 };
  #gateway: Gateway | undefined;
  #cases = 0;

  constructor(seed: number) {
    this.#seed = seed;
  }

  async checkSeeds(): Promise<Fault[]> {
    const faults: Fault[] = [];
    for (const [path, body] of seeds) {
      // Without a grammar compiler and stored files these are refused.
      const refused =
        path === '/v1/batches' || path === '/api/instances/0/role' || JSON.stringify(body).includes('schema');
      const { status, text } = await new Gateway().send(path, { method: 'POST', body: JSON.stringify(body) });
      if (status >= 300 && !refused)
        faults.push({ index: -1, seedName: path, why: `the seed is not served: ${status}: ${text}` });
    }
    return faults;
  }

  async run(index: number): Promise<Fault | undefined> {
    const prng = new MutationRandom(Math.imul(this.#seed, 0x01000193) + index);
    if (this.#cases++ % casesOfGateway === 0) this.#gateway = new Gateway();
    const [path, body] = prng.pick(seeds);
    const startMs = performance.now();
    try {
      const gateway = this.#gateway ?? new Gateway();
      const { status, text, cut } = await (prng.below(20) === 0
        ? gateway.send(prng.pick(getPaths), { method: prng.pick(['GET', 'DELETE', 'PUT', 'POST', 'OPTIONS']) })
        : gateway.send(
            path,
            { method: 'POST', body: mutateBody(body, prng), headers: headersOf(prng) },
            prng.below(10) === 0,
          ));
      checkResponse(status, text, cut);
      await gateway.checkAtRest();
      this.outcomes[cut ? 'cut' : status < 300 ? 'served' : 'refused']++;
      const ms = performance.now() - startMs;
      if (ms > caseMsMax) throw new Error(`it took ${Math.round(ms)} ms`);
      return undefined;
    } catch (error) {
      this.#gateway = undefined;
      this.#cases = 0;
      return { index, seedName: path, why: error instanceof Error ? (error.stack ?? error.message) : String(error) };
    }
  }

  close(): void {}
}

interface Sent {
  readonly status: number;
  readonly text: string;
  /** The client has disconnected before the end. */
  readonly cut: boolean;
}

/** Pins each prefix at once. */
const cluster: ClusterPort = {
  ...noCluster,
  pin: ({ request }, listener) => listener({ kind: 'pinned', tokens: request.prompt.length, untilUs: 0 }, 0),
};

class Gateway {
  readonly #port = new ScriptedPort(script);
  /** Of requests that failed with a status of 500. */
  #error: unknown;
  readonly #app = createApp(
    gatewayOptions(this.#port, {
      ...{ bodyBytesMax: 100_000, cluster },
      logger: pino({ level: 'error' }, { write: (line: string) => this.#note(line) }),
    }),
  );

  async send(path: string, init: RequestInit, cuts = false): Promise<Sent> {
    const response = await this.#app.request(path, init);
    if (!cuts || response.body === null) return { status: response.status, text: await response.text(), cut: false };
    const reader = response.body.getReader();
    await reader.read();
    await reader.cancel();
    return { status: response.status, text: '', cut: true };
  }

  /** Every request of the port has ended or was cancelled. */
  async checkAtRest(): Promise<void> {
    for (let turns = 0; this.#port.snapshot().running > 0; turns++) {
      if (turns === turnsMax) throw new Error('a request is left behind');
      await turn();
    }
    if (this.#error !== undefined) throw new Error(`a request failed: ${String(this.#error)}`);
  }

  #note(line: string): void {
    this.#error = line;
  }
}

function checkResponse(status: number, text: string, cut: boolean): void {
  if (status >= 500 && status !== 503) throw new Error(`status ${status}: ${text.slice(0, 500)}`);
  if (cut) return;
  if (status < 300) {
    if (text.includes('"server_error"') || text.includes('"api_error"'))
      throw new Error(`status ${status}: ${text.slice(0, 500)}`);
    return;
  }
  const { error } = JSON.parse(text) as { error?: { message?: unknown } };
  if (typeof error?.message !== 'string' || error.message.length > 1000 || /[\n\r]/.test(error.message))
    throw new Error(`an error has another shape: ${status}: ${text.slice(0, 500)}`);
}

function mutateBody(body: Json, prng: MutationRandom): Uint8Array | string {
  const text = prng.below(12) === 0 ? JSON.stringify(body) : spellMutated(body, prng);
  return prng.below(8) === 0 ? mutateBytes(new TextEncoder().encode(text), prng, text.length) : text;
}

function headersOf(prng: MutationRandom): Record<string, string> {
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (prng.below(20) === 0) headers['x-request-id'] = prng.pick(['x', 'x'.repeat(5000), 'é', 'a b', '"']);
  if (prng.below(20) === 0) headers.authorization = prng.pick(['Bearer', 'Bearer x', 'Basic eDp5', 'x'.repeat(9000)]);
  if (prng.below(20) === 0) headers.traceparent = prng.pick(['00-0-0-0', 'x', '00-'.repeat(99)]);
  if (prng.below(20) === 0) headers['content-length'] = prng.pick(['-1', '0', '99999999999', 'x']);
  return headers;
}
