// POST /v1/responses: OpenAI's protocol of items, without stored responses, over chat requests.
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
import type { ChoiceHandler, FinishReason, Usage } from '../openai/run-choices.ts';
import { inputSchema, type ResponsesBody, responsesDialect, responsesSchema } from './response-schema.ts';
import { chatOf, refuseState } from './to-chat.ts';

export async function createResponse(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response> {
  const body = parseBody(responsesSchema, json, context, responsesDialect);
  refuseState(body);
  const { choices } = await withFieldNames(fieldNames, planChat(chatOf(body), context, call, 'clip'));
  const ttlS = ttlSecondsOf(body.prompt_cache_options?.ttl);
  const keep = (): void => {
    for (const { request } of ttlS === undefined ? [] : choices)
      context.prefixes.keep(request.prompt, ttlS ?? 0, request, call.caller);
  };
  const shape = new ResponseShape(body, context.model.id, call.requestId, keep);
  if (body.stream === true) return streamResponse(choices, shape, context, call);
  const usage = await runToEnd(choices, shape.collector, context, call);
  keep();
  return Response.json(shape.whole(usage));
}

/** The tokens of the prompt that a request would have. */
export async function countInputTokens(json: unknown, context: EndpointContext): Promise<Response> {
  const body = parseBody(inputSchema, json, context, responsesDialect);
  refuseState(body);
  checkModel(body.model, context.model);
  const { tokens } = await withFieldNames(fieldNames, chatPrompt(chatOf(body), context.model, context.encode));
  return Response.json({ object: 'response.input_tokens', input_tokens: tokens.length });
}

/** The prompt of a request with a time is pinned after its output. */
function ttlSecondsOf(ttl: string | undefined): number | undefined {
  if (ttl === undefined) return undefined;
  return Number.parseInt(ttl, 10) * (ttl.endsWith('h') ? 3600 : 60);
}

const fieldNames: FieldNames = [
  [/messages/, 'input'],
  [/max_tokens/, 'max_output_tokens'],
  [/response_format\.json_schema\.schema/, 'text.format.schema'],
  [/response_format/, 'text.format'],
  [/tools\.(\d+)\.function/, 'tools.$1'],
];

type Status = 'in_progress' | 'completed' | 'incomplete' | 'failed';

/** Formats a response whole, and as events. */
class ResponseShape implements StreamShape {
  readonly #body: ResponsesBody;
  readonly #model: string;
  readonly #requestId: string;
  readonly #onFinished: () => void;
  readonly #createdS = Math.floor(Date.now() / 1000);
  #answer = new AnswerParts();
  #finish: FinishReason = 'stop';
  #events = 0;

  constructor(body: ResponsesBody, model: string, requestId: string, onFinished: () => void) {
    this.#body = body;
    this.#model = model;
    this.#requestId = requestId;
    this.#onFinished = onFinished;
  }

  /** Collects the output of a response without a stream. */
  get collector(): ChoiceHandler {
    return {
      promptLogprobs: () => {},
      delta: (_, delta) => this.#answer.append(delta),
      finished: (_, reason) => {
        this.#finish = reason;
      },
    };
  }

  whole(usage: Usage): object {
    return this.#response(this.#finish === 'length' ? 'incomplete' : 'completed', usage);
  }

  handler(stream: SseStream): ChoiceHandler {
    this.#answer = new AnswerParts(this.#itemEvents(stream));
    for (const type of ['response.created', 'response.in_progress'])
      this.#send(stream, { type, response: this.#response('in_progress') });
    return {
      promptLogprobs: () => {},
      delta: (_, delta) => this.#answer.append(delta),
      finished: (_, reason) => {
        this.#finish = reason;
        this.#answer.end();
      },
    };
  }

  finish(stream: SseStream, usage: Usage): void {
    const type = this.#finish === 'length' ? 'response.incomplete' : 'response.completed';
    this.#send(stream, { type, response: this.whole(usage) });
    stream.end();
    this.#onFinished();
  }

  fail(stream: SseStream, error: ApiError): void {
    const failed = {
      ...this.#response('failed'),
      error: { code: error.code ?? 'server_error', message: error.message },
    };
    this.#send(stream, { type: 'response.failed', response: failed });
    stream.end();
  }

  #response(status: Status, usage?: Usage): object {
    const { instructions, max_output_tokens, temperature, top_p, text, reasoning, tools, metadata } = this.#body;
    return {
      id: answerId('resp', this.#requestId),
      object: 'response',
      created_at: this.#createdS,
      status,
      error: null,
      incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
      model: this.#model,
      output:
        status === 'in_progress' ? [] : this.#answer.parts.map((part, i) => this.#item(part, i, this.#itemStatus(i))),
      usage: usage === undefined ? null : usageOf(usage),
      instructions: instructions ?? null,
      max_output_tokens: max_output_tokens ?? null,
      temperature: temperature ?? null,
      top_p: top_p ?? null,
      text: { format: text?.format ?? { type: 'text' } },
      reasoning: { effort: reasoning?.effort ?? null, summary: null },
      tools: tools ?? [],
      tool_choice: this.#body.tool_choice ?? 'auto',
      parallel_tool_calls: this.#body.parallel_tool_calls ?? true,
      truncation: 'disabled',
      previous_response_id: null,
      store: false,
      metadata: metadata ?? {},
    };
  }

  /** The last item of an answer that was cut is incomplete. */
  #itemStatus(index: number): Status {
    return this.#finish === 'length' && index === this.#answer.parts.length - 1 ? 'incomplete' : 'completed';
  }

  /** @param text of the part, as far as the item has it */
  #item(part: AnswerPart, index: number, status: Status, content = [contentPart(part, part.text)]): object {
    const id = this.#itemId(part, index);
    if (part.kind === 'call') {
      const { id: call_id, name } = part;
      return { id, type: 'function_call', call_id, name, arguments: content.length === 0 ? '' : part.text, status };
    }
    if (part.kind === 'text') return { id, type: 'message', role: 'assistant', content, status };
    return { id, type: 'reasoning', summary: [], content, status };
  }

  #itemId({ kind }: AnswerPart, index: number): string {
    const prefix = { reasoning: 'rs', text: 'msg', call: 'fc' }[kind];
    return `${this.#requestId.replace(/^req-/, `${prefix}_`)}${index}`;
  }

  #send(stream: SseStream, event: { readonly type: string } & Record<string, unknown>): void {
    stream.sendEvent({ ...event, sequence_number: this.#events++ });
  }

  #itemEvents(stream: SseStream): PartListener {
    return {
      opened: (part, index) => {
        const item = this.#item(part, index, 'in_progress', []);
        this.#send(stream, { type: 'response.output_item.added', output_index: index, item });
        if (part.kind === 'call') return;
        const place = { item_id: this.#itemId(part, index), output_index: index, content_index: 0 };
        this.#send(stream, { type: 'response.content_part.added', ...place, part: contentPart(part, '') });
      },
      grew: (part, index, delta) => {
        const place = { item_id: this.#itemId(part, index), output_index: index };
        this.#send(stream, { type: `${eventName(part)}.delta`, ...place, ...inContent(part), delta });
      },
      closed: (part, index) => {
        const place = { item_id: this.#itemId(part, index), output_index: index };
        if (part.kind === 'call') {
          const { name, text } = part;
          this.#send(stream, { type: `${eventName(part)}.done`, ...place, name, arguments: text });
        } else {
          this.#send(stream, { type: `${eventName(part)}.done`, ...place, ...inContent(part), text: part.text });
          const whole = { content_index: 0, part: contentPart(part, part.text) };
          this.#send(stream, { type: 'response.content_part.done', ...place, ...whole });
        }
        const item = this.#item(part, index, this.#itemStatus(index));
        this.#send(stream, { type: 'response.output_item.done', output_index: index, item });
      },
    };
  }
}

function contentPart({ kind }: AnswerPart, text: string): object {
  return kind === 'text'
    ? { type: 'output_text', text, annotations: [], logprobs: [] }
    : { type: 'reasoning_text', text };
}

function eventName({ kind }: AnswerPart): string {
  if (kind === 'call') return 'response.function_call_arguments';
  return kind === 'text' ? 'response.output_text' : 'response.reasoning_text';
}

/** Members of events of parts that have contents. */
function inContent({ kind }: AnswerPart): object {
  if (kind === 'call') return {};
  return { content_index: 0, ...(kind === 'text' && { logprobs: [] }) };
}

function usageOf({ promptTokens, cachedTokens, completionTokens, reasoningTokens }: Usage): object {
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens,
  };
}
