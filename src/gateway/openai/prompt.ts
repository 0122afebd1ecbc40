// Prompts as token ids, with their lengths checked against the context.
import { setImmediate } from 'node:timers/promises';
import { type ChatMessage, type ChatTemplate, ChatTemplateError } from '../../text/template/chat-template.ts';
import { ApiError, badField } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import { checkTokenId } from './params.ts';
import type { ChatBody, CompletionBody } from './schema.ts';

/** Turns text into token ids, long texts in another thread. Rejects with one line if a text cannot be tokenised. */
export type Encode = (text: string, addSpecial: boolean) => Promise<Int32Array>;

/** @throws ApiError 400 if the model has no tokenizer or template, or its template refuses the messages */
export async function chatPrompt(
  body: Pick<ChatBody, 'messages'>,
  model: ServedModel,
  encode: Encode,
): Promise<Int32Array> {
  if (model.tokenizer === undefined) {
    throw badField('messages', `Cannot chat: model '${model.id}' has no tokenizer; send token ids to /v1/completions`);
  }
  if (model.chatTemplate === undefined) {
    throw badField('messages', `Cannot chat: model '${model.id}' has no chat template; use /v1/completions`);
  }
  const messages = body.messages.map(({ role, content, name }) => ({
    role,
    content,
    ...(name !== undefined && { name }),
  }));
  return tokenise(render(model.chatTemplate, messages, model), 'messages', false, encode);
}

function render(template: ChatTemplate, messages: readonly ChatMessage[], { bosToken, eosToken }: ServedModel): string {
  try {
    return template.render({ messages, bosToken, eosToken, nowMs: Date.now() });
  } catch (error) {
    if (error instanceof ChatTemplateError) throw badField('messages', error.message);
    throw error;
  }
}

async function tokenise(text: string, field: string, addSpecial: boolean, encode: Encode): Promise<Int32Array> {
  try {
    return await encode(text, addSpecial);
  } catch (error) {
    throw badField(field, error instanceof Error ? error.message : 'Cannot tokenize text: unknown cause');
  }
}

/** The prompts of a completion: one, or a list. */
export async function completionPrompts(
  body: Pick<CompletionBody, 'prompt'>,
  model: ServedModel,
  encode: Encode,
): Promise<Int32Array[]> {
  const { prompt } = body;
  if (typeof prompt === 'string') return [await encodeText(prompt, model, encode)];
  const prompts: Int32Array[] = [];
  if (isIds(prompt)) prompts.push(idsOf(prompt, model));
  else
    for (const entry of prompt) {
      prompts.push(typeof entry === 'string' ? await encodeText(entry, model, encode) : idsOf(entry, model));
      // Each may take a millisecond: other requests run between them.
      await setImmediate();
    }
  return prompts;
}

function isIds(prompt: readonly unknown[]): prompt is number[] {
  return typeof prompt[0] === 'number';
}

function idsOf(ids: readonly number[], model: ServedModel): Int32Array {
  for (const id of ids) checkTokenId(id, 'prompt', model);
  return Int32Array.from(ids);
}

async function encodeText(text: string, model: ServedModel, encode: Encode): Promise<Int32Array> {
  if (model.tokenizer === undefined) {
    throw badField('prompt', `Cannot complete text: model '${model.id}' has no tokenizer; send token ids`);
  }
  const ids = await tokenise(text, 'prompt', true, encode);
  if (ids.length === 0) throw badField('prompt', 'Cannot complete: the prompt has no tokens');
  return ids;
}

/**
 * The output tokens that a request may generate.
 * @param requested undefined: the rest of the context, or of the capacity of one instance if the prompt fits there
 * @throws ApiError 400 with all figures
 */
export function outputTokens(promptTokens: number, requested: number | undefined, model: ServedModel): number {
  const rest = model.contextTokens - promptTokens;
  if (rest < (requested ?? 1)) {
    const outputText = requested === undefined ? '' : ` and ${requested} output tokens`;
    throw new ApiError(
      400,
      `Cannot fit request: the context is ${model.contextTokens} tokens, the request has ${promptTokens} prompt tokens${outputText}`,
      { code: 'context_length_exceeded', param: requested === undefined ? 'messages' : 'max_tokens' },
    );
  }
  if (requested !== undefined) return requested;
  const { homeTokens = 0 } = model;
  return promptTokens < homeTokens ? Math.min(rest, homeTokens - promptTokens) : rest;
}
