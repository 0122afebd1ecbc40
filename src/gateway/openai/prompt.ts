// Prompts as token ids, with their lengths checked against the context.
import { setImmediate } from 'node:timers/promises';
import { type ChatMessage, type ChatTemplate, ChatTemplateError } from '../../text/template/chat-template.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';
import { ApiError, badField } from '../http/errors.ts';
import type { EngineText, ServedModel } from '../http/served-model.ts';
import { type AnswerPlan, hasReasoningBegun, parsingOf, planAnswer } from './answer-plan.ts';
import { hasToolMessages, templateMessages, templateTools, toolChoiceOf } from './chat-messages.ts';
import type { ChoiceParser } from './choice-output.ts';
import { checkGenerates, checkTokenId } from './params.ts';
import type { ChatBody, CompletionBody } from './schema.ts';

/** Turns text into token ids, long texts in another thread until `signal` aborts. Rejects with one line if a text cannot be tokenized. */
export type Encode = (text: string, addSpecial: boolean, request?: TextRequest) => Promise<Int32Array>;

/** The request of a text: its end ends the tokenizing, and long texts of several callers take turns. */
export interface TextRequest {
  readonly signal: AbortSignal;
  readonly caller: string;
}

type PromptBody = Pick<ChatBody, 'messages'> & Partial<ChatBody>;

export interface ChatPrompt {
  readonly tokens: Int32Array;
  /** Parses the output of a choice; undefined: the output is text. */
  readonly parsing: (() => ChoiceParser) | undefined;
  readonly plan: AnswerPlan & { readonly hasReasoningBegun: boolean };
}

/** @throws ApiError 400 if the model has no tokenizer or template, or its template refuses the messages or tools */
export async function chatPrompt(body: PromptBody, model: ServedModel, encode: Encode): Promise<ChatPrompt> {
  checkGenerates(model);
  if (model.engineText !== undefined) return engineChatPrompt(body, model, model.engineText);
  if (model.tokenizer === undefined) {
    throw badField('messages', `Cannot chat: model '${model.id}' has no tokenizer; send token ids to /v1/completions`);
  }
  if (model.chatTemplate === undefined) {
    throw badField('messages', `Cannot chat: model '${model.id}' has no chat template; use /v1/completions`);
  }
  const { tokenizer } = model;
  const hasTools = (body.tools ?? []).length > 0 || hasToolMessages(body.messages);
  const chatTemplate = (hasTools ? model.toolTemplate : undefined) ?? model.chatTemplate;
  const answer = planAnswer(body, { ...model, chatTemplate, tokenizer });
  const text = render(chatTemplate, body, answer, model);
  refuseLongText(text, 'messages', model);
  const hasBegun = hasReasoningBegun(text, body, answer);
  return {
    tokens: await tokenizeText(text, 'messages', false, encode),
    plan: { ...answer, hasReasoningBegun: hasBegun },
    parsing: parsingOf(answer, body, hasBegun, tokenizer),
  };
}

/** The output is text: its format would be known from a template here. @throws ApiError 400 for tools */
async function engineChatPrompt(body: PromptBody, model: ServedModel, engineText: EngineText): Promise<ChatPrompt> {
  const refused = (field: string): Error => {
    const reason = `'${field}' needs the chat template, which this server does not have: start it with --model`;
    return badField(field, `Cannot accept request: ${reason}`, 'unsupported_parameter');
  };
  if ((body.tools ?? []).length > 0) throw refused('tools');
  if (body.reasoning_format !== undefined && body.reasoning_format !== 'none') throw refused('reasoning_format');
  const { messages, add_generation_prompt, continue_final_message, reasoning_effort, chat_template_kwargs } = body;
  const variables = { ...(reasoning_effort !== undefined && { reasoning_effort }), ...chat_template_kwargs };
  refuseLongText(JSON.stringify(messages), 'messages', model);
  const tokens = await engineText.chat({
    ...{ messages, add_generation_prompt, continue_final_message },
    ...(Object.keys(variables).length > 0 && { chat_template_kwargs: variables }),
  });
  if (tokens.length === 0) throw badField('messages', 'Cannot chat: the messages have no tokens');
  const plan = {
    tools: [],
    calls: undefined,
    choice: toolChoiceOf(body),
    reasoning: undefined,
    bannedToken: undefined,
  };
  return { tokens, plan: { ...plan, hasReasoningBegun: false }, parsing: undefined };
}

/** @throws ApiError 400 if the template refuses the messages, or the last one cannot be continued */
function render(
  template: ChatTemplate,
  body: PromptBody,
  plan: AnswerPlan,
  { bosToken, eosToken }: ServedModel,
): string {
  const { add_generation_prompt: added, continue_final_message: continues = false } = body;
  if (continues && added === true) {
    const reason = "'continue_final_message' and 'add_generation_prompt' are both true: send one of them";
    throw badField('continue_final_message', `Cannot accept request: ${reason}`);
  }
  const messages = templateMessages(body.messages, plan.calls, plan.tools);
  const hasVariable = plan.tools.length > 0 && plan.calls?.style.tools === 'variable';
  const tools = hasVariable ? templateTools(plan.tools) : undefined;
  const variables = variablesOf(body, template);
  const addGenerationPrompt = !continues && (added ?? true);
  try {
    const input = { messages, tools, addGenerationPrompt, bosToken, eosToken, nowMs: Date.now(), variables };
    const text = template.render(input);
    return continues ? upToFinalMessage(text, messages.at(-1)) : text;
  } catch (error) {
    if (error instanceof ChatTemplateError) throw badField('messages', error.message);
    throw error;
  }
}

/** Variables of the template. An effort of `none` turns reasoning off where the template has a switch for it. */
function variablesOf(
  { reasoning_effort: effort, chat_template_kwargs: more }: Partial<ChatBody>,
  { source }: ChatTemplate,
): Record<string, unknown> {
  const isOff = effort === 'none' && source.includes('enable_thinking');
  return {
    ...(effort !== undefined && { reasoning_effort: effort }),
    ...(isOff && { enable_thinking: false }),
    ...more,
  };
}

/** The prompt up to the end of the last message, as in transformers: spaces at its end stay if the template keeps them. */
function upToFinalMessage(text: string, message: ChatMessage | undefined): string {
  const content = message?.content ?? '';
  const final = typeof content === 'string' ? content : content.map((part) => part.text).join('\n');
  const at = text.lastIndexOf(final.trim());
  if (at < 0 || final.trim() === '') {
    const reason = 'the chat template does not write the last message as it is, so it cannot be continued';
    throw badField('continue_final_message', `Cannot accept request: ${reason}`);
  }
  const whole = final.trimStart();
  return text.slice(0, at + (text.startsWith(whole, at) ? whole.length : final.trim().length));
}

/** @throws ApiError 400 naming the field */
export async function tokenizeText(
  text: string,
  field: string,
  addSpecial: boolean,
  encode: Encode,
): Promise<Int32Array> {
  try {
    return await encode(text, addSpecial);
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw badField(field, error instanceof Error ? error.message : 'Cannot tokenize text: unknown cause');
  }
}

/** The prompts of a completion, or inputs of an embedding: one, or a list. @param field has them */
export async function completionPrompts(
  body: Pick<CompletionBody, 'prompt'>,
  model: ServedModel,
  encode: Encode,
  field = 'prompt',
): Promise<Int32Array[]> {
  const { prompt } = body;
  if (typeof prompt === 'string') return [await encodeText(prompt, model, encode, field)];
  const prompts: Int32Array[] = [];
  if (isIds(prompt)) prompts.push(idsOf(prompt, model, field));
  else
    for (const entry of prompt) {
      prompts.push(
        typeof entry === 'string' ? await encodeText(entry, model, encode, field) : idsOf(entry, model, field),
      );
      // Each may take a millisecond: other requests run between them.
      await setImmediate();
    }
  return prompts;
}

function isIds(prompt: readonly unknown[]): prompt is number[] {
  return typeof prompt[0] === 'number';
}

function idsOf(ids: readonly number[], model: ServedModel, field: string): Int32Array {
  for (const id of ids) checkTokenId(id, field, model);
  return Int32Array.from(ids);
}

async function encodeText(text: string, model: ServedModel, encode: Encode, field: string): Promise<Int32Array> {
  const verb = field === 'prompt' ? 'complete' : 'embed';
  if (model.tokenizer === undefined && model.engineText === undefined) {
    throw badField(field, `Cannot ${verb} text: model '${model.id}' has no tokenizer; send token ids`);
  }
  refuseLongText(text, field, model);
  const ids = await tokenizeText(text, field, true, encode);
  if (ids.length === 0) throw badField(field, `Cannot ${verb}: the ${field} has no tokens`);
  return ids;
}

/** A normaliser may replace several characters by one: texts of this many times the context are still tokenized. */
const normalisedShare = 4;
/** Bytes of the longest token. */
const longestTokens = new WeakMap<Tokenizer, number>();

/** Of a vocabulary that only the engines have. The longest tokens of models in use, runs of spaces, have 128. */
const longestOfEngines = 256;

/** Texts that cannot fit are not tokenized, which would hold up other requests. @throws ApiError 400 with all figures */
export function refuseLongText(text: string, field: string, { tokenizer, contextTokens }: ServedModel): void {
  const most = normalisedShare * contextTokens;
  // A token has a byte at least.
  if (text.length <= most) return;
  const longest = tokenizer === undefined ? longestOfEngines : longestIn(tokenizer);
  if (text.length <= most * longest) return;
  throw new ApiError(
    400,
    `Cannot fit request: the context is ${contextTokens} tokens of at most ${longest} bytes, the text has ${text.length} characters`,
    { code: 'context_length_exceeded', param: field },
  );
}

function longestIn(tokenizer: Tokenizer): number {
  const known = longestTokens.get(tokenizer);
  if (known !== undefined) return known;
  let longest = 1;
  for (let id = 0; id < tokenizer.vocabSize; id++) longest = Math.max(longest, tokenizer.tokenBytes(id).length);
  longestTokens.set(tokenizer, longest);
  return longest;
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

/** The same where the output ends with the context. @throws ApiError 400 for a prompt that leaves no output */
export function clippedOutput(promptTokens: number, requested: number | undefined, model: ServedModel): number {
  const most = outputTokens(promptTokens, undefined, model);
  return requested === undefined ? most : Math.min(requested, model.contextTokens - promptTokens);
}
