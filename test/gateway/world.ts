// A gateway over a scripted port and a tokenizer of bytes, and request helpers.
import { pino } from 'pino';
import type { ClusterPort, InferencePort } from '../../src/core/protocol/ports.ts';
import { createApp, type GatewayOptions } from '../../src/gateway/http/app.ts';
import { ApiKeys } from '../../src/gateway/keys/api-keys.ts';
import { ChatTemplate } from '../../src/text/template/chat-template.ts';
import { bytesOf, byteTokenizer } from './openai/byte-tokenizer.ts';
import { accepted, finished, type Script, ScriptedPort, started, tokens } from './scripted-port.ts';

/** A cluster port without request traces and pins. */
export const noCluster: ClusterPort = {
  requestTrace: () => undefined,
  recentTraces: () => ({ nowUs: 0, traces: [] }),
  sharedPrefixes: () => [],
  onEnded: () => {},
  roles: () => ['mixed'],
  switchRole: () => undefined,
  pin: () => {},
  unpin: () => {},
};

/** Figures of a server with one model. */
export const figuresOf = (port: InferencePort, model = 'bytes') => {
  const figures = () => [{ model, snapshot: port.snapshot(), loads: undefined }];
  return { figures };
};

const template = '{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:';

export function gatewayOptions(port: ScriptedPort, more: Partial<GatewayOptions> = {}): GatewayOptions {
  return {
    model: {
      id: 'bytes',
      createdS: 1,
      contextTokens: 100,
      vocabSize: 257,
      tokenizer: byteTokenizer,
      chatTemplate: new ChatTemplate(template),
      bosToken: undefined,
      eosToken: undefined,
      eosIds: [256],
      defaults: { temperature: 1, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1 },
    },
    port,
    cluster: noCluster,
    exporter: undefined,
    encode: async (text) => Int32Array.from(byteTokenizer.encode(text)),
    logger: pino({ level: 'silent' }),
    keys: new ApiKeys({ users: [], admins: [] }),
    corsOrigins: [],
    bodyBytesMax: 10_000,
    streamBufferBytesMax: 1 << 20,
    choicesMax: 64,
    sloClasses: new Map([['fast', { priority: 5 }]]),
    ...more,
  };
}

export function gateway(script: Script, more: Partial<GatewayOptions> = {}) {
  const port = new ScriptedPort(script);
  const options = gatewayOptions(port, more);
  const app = createApp(options);
  const post = (path: string, body: unknown, headers: Record<string, string> = {}) =>
    app.request(path, { method: 'POST', body: typeof body === 'string' ? body : JSON.stringify(body), headers });
  return { app, port, post, options };
}

export const answering =
  (text: string, reason: 'stop' | 'length' = 'length'): Script =>
  () => [accepted, started(2), ...bytesOf(text).map((id) => tokens([id])), finished(reason)];

export const chat = { model: 'bytes', messages: [{ role: 'user', content: 'hi' }] };

export async function events(response: Response): Promise<unknown[]> {
  const lines = (await response.text()).split('\n\n').filter((line) => line !== '');
  return lines.map((line) => (line === 'data: [DONE]' ? 'done' : JSON.parse(line.slice('data: '.length))));
}
