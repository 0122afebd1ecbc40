// POST /v1/messages and /v1/messages/count_tokens: the Anthropic protocol, over chat requests.
import type { GenerationRequest } from '../../core/protocol/ports.ts';
import { type ApiError, answerId } from '../http/errors.ts';
import { type FieldNames, withFieldNames } from '../http/field-names.ts';
import type { SseStream } from '../http/sse.ts';
import { type AnswerPart, AnswerParts, type PartListener } from '../openai/answer-parts.ts';
import { planChat } from '../openai/chat.ts';
import {
  checkModel,
  type EndpointCall,
  type EndpointContext,
  runToEnd,
  type StreamShape,
  streamResponse,
} from '../openai/endpoint.ts';
import { parseBody } from '../openai/fields.ts';
import { chatPrompt } from '../openai/prompt.ts';
import type { Choice, ChoiceHandler, FinishReason, Usage } from '../openai/run-choices.ts';
import { cachedPrefixes } from './cached-prefixes.ts';
import { messageError } from './message-errors.ts';
import { countSchema, type MessagesBody, messagesDialect, messagesSchema } from './message-schema.ts';
import { chatOf, promptOf } from './to-chat.ts';

const fieldNames: FieldNames = [
  [/response_format\.json_schema\.schema/, 'output_config.format.schema'],
  [/response_format/, 'output_config.format'],
  [/tools\.(\d+)\.function\.parameters/, 'tools.$1.input_schema'],
  [/continue_final_message/, 'messages'],
];

export async function createMessage(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response> {
  const body = parseBody(messagesSchema, json, context, messagesDialect);
  const { choices } = await withFieldNames(fieldNames, planChat(chatOf(body), context, call, 'clip'));
  const request = choices[0]?.request;
  const keep = (): void => keepMarked(body, request, context, call);
  const isCut = request !== undefined && request.maxTokens < body.max_tokens;
  const shape = new MessageShape(context.model.id, call.requestId, isCut, keep);
  if (body.stream === true) return streamResponse(choices, shape, context, call);
  const usage = await runToEnd(choices, shape.collector, context, call);
  keep();
  return Response.json(shape.whole(usage));
}

/** Pins the prefixes that the request marks, after its output: their blocks are computed then. */
function keepMarked(
  body: MessagesBody,
  request: GenerationRequest | undefined,
  { model: { tokenizer }, prefixes, port }: EndpointContext,
  { caller }: EndpointCall,
): void {
  if (tokenizer === undefined || request === undefined || !prefixes.hasMemory) return;
  const blockTokens = port.snapshot().blocks?.tokens ?? 1;
  for (const { tokens, ttlS } of cachedPrefixes(body, request.prompt, tokenizer))
    if (tokens >= blockTokens) prefixes.keep(request.prompt.slice(0, tokens), ttlS, request, caller);
}

export async function countTokens(json: unknown, context: EndpointContext): Promise<Response> {
  const body = parseBody(countSchema, json, context, messagesDialect);
  checkModel(body.model, context.model);
  const { tokens } = await withFieldNames(fieldNames, chatPrompt(promptOf(body), context.model, context.encode));
  return Response.json({ input_tokens: tokens.length });
}

interface StopReason {
  readonly stop_reason: string;
  readonly stop_sequence: string | null;
}

/** Formats the response to a messages request. */
class MessageShape implements StreamShape {
  readonly #model: string;
  readonly #requestId: string;
  /** The context ends before `max_tokens`. */
  readonly #isCutByContext: boolean;
  readonly #onFinished: () => void;
  readonly #answer = new AnswerParts();
  #stop: StopReason = { stop_reason: 'end_turn', stop_sequence: null };

  constructor(model: string, requestId: string, isCutByContext: boolean, onFinished: () => void) {
    this.#model = model;
    this.#requestId = requestId;
    this.#isCutByContext = isCutByContext;
    this.#onFinished = onFinished;
  }

  /** Collects the output of a response without a stream. */
  get collector(): ChoiceHandler {
    return {
      promptLogprobs: () => {},
      delta: (_, delta) => this.#answer.append(delta),
      finished: (choice, reason) => this.#finished(choice, reason),
    };
  }

  whole(usage: Usage): object {
    return { ...this.#message(usage), content: this.#answer.parts.map(contentBlock), ...this.#stop };
  }

  handler(stream: SseStream): ChoiceHandler {
    const answer = new AnswerParts(blockEvents(stream));
    let hasBegun = false;
    const begin = (usage: Usage): void => {
      if (hasBegun) return;
      hasBegun = true;
      const message = { ...this.#message(usage), stop_reason: null, stop_sequence: null };
      stream.sendEvent({ type: 'message_start', message });
    };
    return {
      promptLogprobs: () => {},
      started: (_, usage) => begin({ ...usage, completionTokens: 0 }),
      delta: ({ request: { prompt } }, delta) => {
        // Tokens of a decode instance may overtake the start.
        begin({ promptTokens: prompt.length, cachedTokens: 0, completionTokens: 0, reasoningTokens: 0 });
        answer.append(delta);
      },
      finished: (choice, reason) => {
        answer.end();
        this.#finished(choice, reason);
      },
    };
  }

  finish(stream: SseStream, usage: Usage): void {
    stream.sendEvent({ type: 'message_delta', delta: this.#stop, usage: usageOf(usage) });
    stream.sendEvent({ type: 'message_stop' });
    stream.end();
    this.#onFinished();
  }

  fail(stream: SseStream, error: ApiError): void {
    stream.sendEvent(messageError(error, this.#requestId));
    stream.end();
  }

  #message(usage: Usage): object {
    const id = answerId('msg', this.#requestId);
    return {
      id,
      type: 'message',
      role: 'assistant',
      model: this.#model,
      content: [],
      usage: usageOf(usage),
    };
  }

  #finished({ output: { stopString } }: Choice, reason: FinishReason): void {
    if (stopString !== undefined) this.#stop = { stop_reason: 'stop_sequence', stop_sequence: stopString };
    else this.#stop = { stop_reason: this.#reasonOf(reason), stop_sequence: null };
  }

  #reasonOf(reason: FinishReason): string {
    if (reason === 'tool_calls') return 'tool_use';
    if (reason === 'stop') return 'end_turn';
    return this.#isCutByContext ? 'model_context_window_exceeded' : 'max_tokens';
  }
}

/** `input_tokens` counts the computed tokens of the prompt. */
function usageOf({ promptTokens, cachedTokens, completionTokens, reasoningTokens }: Usage): object {
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
    output_tokens_details: { thinking_tokens: reasoningTokens },
  };
}

function contentBlock(part: AnswerPart): object {
  if (part.kind === 'call') return { ...emptyBlock(part), input: inputOf(part.text) };
  return { ...emptyBlock(part), [part.kind === 'text' ? 'text' : 'thinking']: part.text };
}

/** A block as it is before its content. */
function emptyBlock(part: AnswerPart): object {
  if (part.kind === 'call') return { type: 'tool_use', id: part.id, name: part.name, input: {} };
  if (part.kind === 'reasoning') return { type: 'thinking', thinking: '', signature: '' };
  return { type: 'text', text: '', citations: null };
}

/** Arguments that were cut are no object. */
function inputOf(text: string): object {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : {};
  } catch {
    return {};
  }
}

function blockEvents(stream: SseStream): PartListener {
  const send: SseStream['sendEvent'] = (event) => stream.sendEvent(event);
  return {
    opened: (part, index) => send({ type: 'content_block_start', index, content_block: emptyBlock(part) }),
    grew: (part, index, text) => send({ type: 'content_block_delta', index, delta: deltaOf(part, text) }),
    closed: (_, index) => send({ type: 'content_block_stop', index }),
  };
}

function deltaOf({ kind }: AnswerPart, text: string): object {
  if (kind === 'text') return { type: 'text_delta', text };
  if (kind === 'reasoning') return { type: 'thinking_delta', thinking: text };
  return { type: 'input_json_delta', partial_json: text };
}
