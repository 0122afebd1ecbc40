// POST /v1/chat/completions.

import type { ToolCall } from '../../text/tools/tool.ts';
import { answerId, badField } from '../http/errors.ts';
import type { SseStream } from '../http/sse.ts';
import { answerGrammar } from './answer-grammar.ts';
import type { Delta, TokenEntry } from './choice-output.ts';
import {
  checkChoices,
  checkModel,
  type EndpointCall,
  type EndpointContext,
  type PlanCall,
  type PlanContext,
  planChoices,
  runStreaming,
  runToEnd,
  usageBody,
} from './endpoint.ts';
import { parseBody } from './fields.ts';
import type { LogprobRequest } from './params.ts';
import { chatPrompt, clippedOutput, outputTokens } from './prompt.ts';
import type { Choice, FinishReason } from './run-choices.ts';
import { type ChatBody, chatSchema } from './schema.ts';
import { compilerFor } from './structured-output.ts';
import { TokenNames } from './token-names.ts';

export async function chatCompletions(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response> {
  const body = parseBody(chatSchema, json, context);
  const { choices, promptTokens } = await planChat(body, context, call);
  const shape = new ChatShape(body, context, call, promptTokens);
  if (body.stream === true) {
    return runStreaming(
      choices,
      (stream) => shape.streamHandler(stream),
      (usage) => shape.usageChunk(usageBody(usage)),
      context,
      call,
    );
  }
  const answers = choices.map(() => new ChatAnswer());
  const usage = await runToEnd(
    choices,
    {
      promptLogprobs: () => {},
      delta: ({ index }, delta) => answers[index]?.append(delta, shape.needsEntries),
      finished: ({ index }, reason) => {
        const answer = answers[index];
        if (answer !== undefined) answer.finish = reason;
      },
    },
    context,
    call,
  );
  return Response.json(shape.whole(answers, usageBody(usage)));
}

/**
 * The choices of a chat request, ready to run.
 * @param beyondContext what happens to a limit of the output beyond the context: a 400, or the output ends with the context
 * @throws ApiError if the request cannot be served
 */
export async function planChat(
  body: ChatBody,
  context: PlanContext,
  call: PlanCall,
  beyondContext: 'refuse' | 'clip' = 'refuse',
): Promise<{ readonly choices: readonly Choice[]; readonly promptTokens: Int32Array }> {
  checkModel(body.model, context.model);
  if (!call.batch) context.usage.check(call.caller);
  checkChoices(1, body.n, context);
  const logprobs = logprobRequest(body);
  const requestedTokens = maxTokens(body);
  const outputLimit = beyondContext === 'clip' ? clippedOutput : outputTokens;
  const { tokens, plan, parsing } = await chatPrompt(body, context.model, context.encode);
  const grammars = compilerFor(context.grammars, call.caller);
  const grammar = await answerGrammar(body, plan, { model: context.model, grammars });
  const planned = {
    grammar,
    tokens,
    startsText: body.continue_final_message !== true,
    maxTokens: outputLimit(tokens.length, requestedTokens, context.model),
    parsing,
  };
  const { bannedToken } = plan;
  const sampled =
    bannedToken === undefined ? body : { ...body, logit_bias: { ...body.logit_bias, [bannedToken]: banningBias } };
  return { choices: planChoices([planned], sampled, logprobs, context, call), promptTokens: tokens };
}

const banningBias = -100;

/** The whole answer of a choice. */
export class ChatAnswer {
  text = '';
  reasoning = '';
  readonly calls: ToolCall[] = [];
  readonly entries: TokenEntry[] = [];
  finish: FinishReason = 'stop';

  append({ text, reasoning, calls, entries }: Delta, needsEntries: boolean): void {
    this.text += text;
    this.reasoning += reasoning;
    for (const { id = '', name, arguments: args } of calls) {
      const last = name === undefined ? this.calls.pop() : { id, name, arguments: '' };
      if (last !== undefined) this.calls.push({ ...last, arguments: last.arguments + args });
    }
    if (needsEntries) this.entries.push(...entries);
  }
}

function maxTokens(body: ChatBody): number | undefined {
  const { max_tokens: a, max_completion_tokens: b } = body;
  if (a !== undefined && b !== undefined && a !== b) {
    throw badField(
      'max_tokens',
      `Cannot accept request: 'max_tokens' is ${a} and 'max_completion_tokens' is ${b}: send one of them`,
    );
  }
  return b ?? a;
}

function logprobRequest(body: ChatBody): LogprobRequest {
  if (body.top_logprobs !== undefined && body.logprobs !== true) {
    throw badField(
      'top_logprobs',
      `Cannot accept request: 'top_logprobs' is ${body.top_logprobs} but 'logprobs' is not true`,
    );
  }
  return { top: body.logprobs === true ? (body.top_logprobs ?? 0) : undefined, prompt: false };
}

/** Formats the response to a chat request in the OpenAI shapes. */
class ChatShape {
  /** True if the response includes tokens without text. */
  readonly needsEntries: boolean;
  readonly #body: ChatBody;
  readonly #names: TokenNames;
  readonly #promptTokens: Int32Array;
  readonly #head: { readonly id: string; readonly created: number; readonly model: string };
  readonly #begun = new Set<number>();

  constructor(body: ChatBody, context: EndpointContext, { requestId }: EndpointCall, promptTokens: Int32Array) {
    this.#body = body;
    this.#promptTokens = promptTokens;
    this.needsEntries = body.logprobs === true || body.return_token_ids === true;
    this.#names = new TokenNames(context.model.tokenizer, body.return_tokens_as_token_ids === true);
    const created = Math.floor(Date.now() / 1000);
    this.#head = { id: answerId('chatcmpl', requestId), created, model: context.model.id };
  }

  whole(answers: readonly ChatAnswer[], usage: object): object {
    return {
      ...this.#head,
      object: 'chat.completion',
      choices: answers.map(({ text, reasoning, calls, entries, finish }, index) => ({
        index,
        message: {
          role: 'assistant',
          content: text === '' && calls.length > 0 ? null : text,
          refusal: null,
          ...(reasoning !== '' && { reasoning_content: reasoning }),
          ...(calls.length > 0 && {
            tool_calls: calls.map(({ id, name, arguments: args }) => ({
              id,
              type: 'function',
              function: { name, arguments: args },
            })),
          }),
        },
        logprobs: this.#logprobs(entries) ?? null,
        finish_reason: finish,
        ...this.#ids(entries),
      })),
      usage,
      ...this.#promptIds(),
    };
  }

  streamHandler(stream: SseStream) {
    return {
      promptLogprobs: () => {},
      delta: ({ index }: Choice, delta: Delta) => {
        if (!this.#begun.has(index)) this.#begin(stream, index);
        const changes = changesOf(delta);
        if (changes.length === 0 && delta.entries.length > 0 && this.needsEntries) changes.push({ content: '' });
        // The first chunk has the tokens of all.
        let entries: readonly TokenEntry[] | undefined = delta.entries;
        for (const change of changes) {
          const logprobs = entries === undefined ? undefined : this.#logprobs(entries);
          const ids = entries === undefined ? {} : this.#ids(entries);
          const choice = { index, delta: change, ...(logprobs && { logprobs }), ...ids };
          stream.send(this.#chunk([{ ...choice, finish_reason: null }]));
          entries = undefined;
        }
      },
      finished: ({ index }: Choice, reason: FinishReason) => {
        stream.send(this.#chunk([{ index, delta: {}, finish_reason: reason }]));
      },
    };
  }

  usageChunk(usage: object): object | undefined {
    if (this.#body.stream_options?.include_usage !== true) return undefined;
    return { ...this.#head, object: 'chat.completion.chunk', choices: [], usage };
  }

  #begin(stream: SseStream, index: number): void {
    const first = this.#begun.size === 0 ? this.#promptIds() : {};
    this.#begun.add(index);
    stream.send({
      ...this.#chunk([{ index, delta: { role: 'assistant', content: '' }, finish_reason: null }]),
      ...first,
    });
  }

  #chunk(choices: readonly object[]): object {
    const usage = this.#body.stream_options?.include_usage === true ? { usage: null } : {};
    return { ...this.#head, object: 'chat.completion.chunk', choices, ...usage };
  }

  #logprobs(entries: readonly TokenEntry[]): object | undefined {
    if (this.#body.logprobs !== true) return undefined;
    return { content: entries.filter(({ isText }) => isText).map((entry) => this.#entry(entry)), refusal: null };
  }

  #entry(entry: TokenEntry): object {
    const spelled = (id: number, logprob: number | undefined) => {
      const { token, bytes } = this.#names.name(id);
      return { token, logprob: logprob ?? null, bytes: bytes ?? null };
    };
    const top = entry.alternatives.map(({ id, logprob }) => spelled(id, logprob));
    return { ...spelled(entry.id, entry.logprob), top_logprobs: top };
  }

  #ids(entries: readonly TokenEntry[]): object {
    return this.#body.return_token_ids === true ? { token_ids: entries.map((entry) => entry.id) } : {};
  }

  #promptIds(): object {
    return this.#body.return_token_ids === true ? { prompt_token_ids: [...this.#promptTokens] } : {};
  }
}

/** What a delta adds to a message, in chunks of OpenAI's shape. */
function changesOf({ text, reasoning, calls }: Delta): object[] {
  const changes: object[] = [];
  if (reasoning !== '') changes.push({ reasoning_content: reasoning });
  if (text !== '') changes.push({ content: text });
  for (const { index, id, name, arguments: args } of calls) {
    const begun = { index, id, type: 'function', function: { name, arguments: '' } };
    if (name !== undefined) changes.push({ tool_calls: [begun] });
    if (args !== '') changes.push({ tool_calls: [{ index, function: { arguments: args } }] });
  }
  return changes;
}
