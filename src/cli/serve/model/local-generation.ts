// One generation on an instance of this process, for `generate` and `chat`.
import { randomUUID } from 'node:crypto';
import type { GenerationEvent, GenerationRequest } from '../../../core/protocol/ports.ts';
import { choiceSeed } from '../../../gateway/openai/params.ts';
import { Detokenizer } from '../../../text/detokenizer.ts';
import type { ChatMessage } from '../../../text/template/chat-template.ts';
import { ContextFull } from '../../terminal/chat-session.ts';
import type { Serving } from '../open-serving.ts';

export type LocalInput = { readonly text: string } | { readonly messages: readonly ChatMessage[] };

export interface LocalSettings {
  readonly maxTokens?: number | undefined;
  readonly temperature?: number | undefined;
  readonly topP?: number | undefined;
  readonly seed?: number | undefined;
}

export interface LocalOutput {
  readonly text: string;
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly finishReason: 'stop' | 'length';
}

/** A conversation leaves room for an answer of this many tokens, or of a quarter of a small context. */
const answerTokensMin = 256;

/**
 * Streams the output text to `onText`; an abort ends it early.
 * @throws ContextFull if the prompt does not fit; Error if the instance fails
 */
export async function generateText(
  serving: Serving,
  input: LocalInput,
  settings: LocalSettings,
  onText: (text: string) => void,
  signal?: AbortSignal,
): Promise<LocalOutput> {
  const { model, cluster } = serving;
  if (model.tokenizer === undefined) throw new Error(`Cannot generate: model '${model.id}' has no tokenizer`);
  const prompt = await promptTokens(serving, input);
  const capacity = model.contextTokens - prompt.length;
  const least = 'messages' in input ? Math.min(answerTokensMin, Math.floor(model.contextTokens / 4)) : 1;
  if (capacity < Math.max(1, Math.min(least, settings.maxTokens ?? least)))
    throw new ContextFull(
      `Cannot generate: the prompt has ${prompt.length} tokens, the context ${model.contextTokens}`,
    );
  const detokenizer = new Detokenizer(model.tokenizer, { atStart: 'messages' in input });
  const ends = new Set(model.eosIds);
  let text = '';
  let outputTokens = 0;
  const add = (piece: string): void => {
    text += piece;
    onText(piece);
  };
  const request = localRequest(serving, prompt, Math.min(capacity, settings.maxTokens ?? capacity), settings);
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      cluster.cancel(request.id);
      resolve({ text, promptTokens: prompt.length, outputTokens, finishReason: 'stop' });
    };
    if (signal?.aborted) return stop();
    signal?.addEventListener('abort', stop, { once: true });
    cluster.submit(request, (event: GenerationEvent) => {
      if (signal?.aborted) return;
      if (event.kind === 'tokens') {
        outputTokens += event.tokens.length;
        for (const id of event.tokens) if (!ends.has(id)) add(detokenizer.push(id));
      } else if (event.kind === 'finished') {
        resolve({ text, promptTokens: prompt.length, outputTokens, finishReason: event.reason });
      } else if (event.kind === 'failed') reject(new Error(event.message));
    });
  });
}

async function promptTokens({ model, encode }: Serving, input: LocalInput): Promise<Int32Array> {
  if (model.generates === false) throw new Error(`Cannot generate: model '${model.id}' is an encoder`);
  if ('text' in input) return encode(input.text, true);
  if (model.chatTemplate === undefined) throw new Error(`Cannot chat: model '${model.id}' has no chat template`);
  const { bosToken, eosToken } = model;
  return encode(model.chatTemplate.render({ messages: input.messages, bosToken, eosToken, nowMs: Date.now() }), false);
}

/** Sampling where the model's files state nothing; the API keeps the defaults of OpenAI. */
const terminalTemperature = 0.7;
const terminalMinP = 0.05;

function localRequest(
  { model }: Serving,
  prompt: Int32Array,
  maxTokens: number,
  settings: LocalSettings,
): GenerationRequest {
  const { defaults, stated = {} } = model;
  const statesCut = stated.topP !== undefined || stated.topK !== undefined || stated.minP !== undefined;
  return {
    id: randomUUID(),
    prompt,
    maxTokens,
    sampling: {
      ...defaults,
      temperature: settings.temperature ?? stated.temperature ?? terminalTemperature,
      minP: statesCut ? defaults.minP : terminalMinP,
      topP: settings.topP ?? defaults.topP,
      frequencyPenalty: 0,
      presencePenalty: 0,
      logitBias: [],
      seed: choiceSeed(settings.seed, 0),
      topLogprobs: undefined,
      promptLogprobs: false,
    },
    stopTokenIds: model.eosIds,
    priority: 0,
    salt: '',
  };
}
