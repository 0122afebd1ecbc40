// One generation on an instance of this process, for `generate` and `chat`.
import { randomUUID } from 'node:crypto';
import type { GenerationEvent, GenerationRequest } from '../../../core/protocol/ports.ts';
import { choiceSeed } from '../../../gateway/openai/params.ts';
import { Detokenizer } from '../../../text/detokenizer.ts';
import type { ChatMessage } from '../../../text/template/chat-template.ts';
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

/** Streams the output text to `onText`. @throws Error if the prompt does not fit or the instance fails */
export async function generateText(
  serving: Serving,
  input: LocalInput,
  settings: LocalSettings,
  onText: (text: string) => void,
): Promise<LocalOutput> {
  const { model, cluster } = serving;
  if (model.tokenizer === undefined) throw new Error(`Cannot generate: model '${model.id}' has no tokenizer`);
  const prompt = await promptTokens(serving, input);
  const capacity = model.contextTokens - prompt.length;
  if (capacity < 1)
    throw new Error(`Cannot generate: the prompt has ${prompt.length} tokens, the context ${model.contextTokens}`);
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
    cluster.submit(request, (event: GenerationEvent) => {
      if (event.kind === 'tokens') {
        outputTokens += event.tokens.length;
        for (const id of event.tokens) if (!ends.has(id)) add(detokenizer.push(id));
      } else if (event.kind === 'finished') {
        add(detokenizer.flush());
        resolve({ text, promptTokens: prompt.length, outputTokens, finishReason: event.reason });
      } else if (event.kind === 'failed') reject(new Error(event.message));
    });
  });
}

async function promptTokens({ model, encode }: Serving, input: LocalInput): Promise<Int32Array> {
  if ('text' in input) return encode(input.text, true);
  if (model.chatTemplate === undefined) throw new Error(`Cannot chat: model '${model.id}' has no chat template`);
  const { bosToken, eosToken } = model;
  return encode(model.chatTemplate.render({ messages: input.messages, bosToken, eosToken, nowMs: Date.now() }), false);
}

function localRequest(
  { model }: Serving,
  prompt: Int32Array,
  maxTokens: number,
  settings: LocalSettings,
): GenerationRequest {
  const { defaults } = model;
  return {
    id: randomUUID(),
    prompt,
    maxTokens,
    sampling: {
      ...defaults,
      temperature: settings.temperature ?? defaults.temperature,
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
