// POST /v1/completions.
import type { TokenLogprobs } from '../../core/protocol/ports.ts';
import { badField } from '../http/errors.ts';
import type { SseStream } from '../http/sse.ts';
import { type TokenEntry, tokenEntry } from './choice-output.ts';
import { CompletionShape, type CompletionText } from './completion-shape.ts';
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
import { checkGenerates } from './params.ts';
import { completionPrompts, outputTokens } from './prompt.ts';
import { promptCount } from './prompt-schema.ts';
import type { Choice, ChoiceHandler } from './run-choices.ts';
import { type CompletionBody, completionSchema } from './schema.ts';
import { compilerFor, requestGrammar } from './structured-output.ts';

/** Default number of output tokens of OpenAI completions. */
const defaultMaxTokens = 16;

export async function completions(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response> {
  const body = parseBody(completionSchema, json, context);
  const choices = await planCompletion({ max_tokens: defaultMaxTokens, ...body }, context, call);
  const shape = new CompletionShape(body, context, call);
  if (body.stream === true) {
    return runStreaming(
      choices,
      (stream) => streamHandler(shape, stream),
      (usage) => shape.usageChunk(usageBody(usage)),
      context,
      call,
    );
  }
  const texts = choices.map(
    (choice): CompletionText => ({
      choice,
      promptEntries: firstPromptEntries(choice),
      text: '',
      entries: [],
      finish: 'length',
    }),
  );
  const usage = await runToEnd(choices, collectInto(texts, shape.needsEntries), context, call);
  return Response.json(shape.whole(texts, usageBody(usage)));
}

/** The choices of a completion, ready to run; without `max_tokens`, to the end of the context. @throws ApiError if the request cannot be served */
export async function planCompletion(
  body: CompletionBody,
  context: PlanContext,
  call: PlanCall,
): Promise<readonly Choice[]> {
  checkModel(body.model, context.model);
  checkGenerates(context.model);
  if (!call.batch) context.usage.check(call.caller);
  const { max_tokens: maxTokens } = body;
  if (maxTokens === 0 && body.echo !== true) {
    throw badField(
      'max_tokens',
      "Cannot complete: 'max_tokens' is 0 and 'echo' is not true: the response would be empty",
    );
  }
  if (body.echo === true && context.model.engineText !== undefined)
    throw badField(
      'echo',
      "Cannot complete: 'echo' needs the tokenizer, which this server does not have",
      'unsupported_parameter',
    );
  checkChoices(promptCount(body.prompt), body.n, context);
  const prompts = await completionPrompts(body, context.model, context.encode);
  const grammar = await requestGrammar(body, context.model, compilerFor(context.grammars, call.caller));
  const planned = prompts.map((tokens) => ({
    tokens,
    grammar,
    startsText: false,
    maxTokens: outputTokens(tokens.length, maxTokens, context.model),
  }));
  const logprobs = { top: body.logprobs, prompt: body.echo === true && body.logprobs !== undefined };
  return planChoices(planned, body, logprobs, context, call);
}

function collectInto(texts: readonly CompletionText[], needsEntries: boolean): ChoiceHandler {
  return {
    promptLogprobs: (choice, piece) => {
      const text = texts[choice.index];
      if (text !== undefined) addPromptEntries(text.promptEntries, choice, piece);
    },
    delta: ({ index }, delta) => {
      const text = texts[index];
      if (text === undefined) return;
      text.text += delta.text;
      if (needsEntries) text.entries.push(...delta.entries);
    },
    finished: ({ index }, reason) => {
      const text = texts[index];
      if (text !== undefined) text.finish = reason;
    },
  };
}

/** The first token of a scored prompt has no log-probability. */
function firstPromptEntries({ request }: Choice): TokenEntry[] {
  if (!request.sampling.promptLogprobs) return [];
  return [{ id: request.prompt[0] ?? 0, start: 0, logprob: undefined, alternatives: [], isText: true }];
}

function addPromptEntries(entries: TokenEntry[], { request }: Choice, piece: TokenLogprobs): void {
  for (let i = 0; i < piece.logprobs.length; i++) {
    entries.push(tokenEntry(request.prompt[entries.length] ?? 0, 0, piece, i));
  }
}

function streamHandler(shape: CompletionShape, stream: SseStream): ChoiceHandler {
  const promptEntries = new Map<number, TokenEntry[]>();
  const begun = new Set<number>();
  const entriesOf = (choice: Choice): TokenEntry[] => {
    const entries = promptEntries.get(choice.index) ?? firstPromptEntries(choice);
    promptEntries.set(choice.index, entries);
    return entries;
  };
  const begin = (choice: Choice): void => {
    begun.add(choice.index);
    const chunk = shape.firstChunk(choice, entriesOf(choice));
    promptEntries.delete(choice.index);
    if (chunk !== undefined) stream.send(chunk);
  };
  return {
    promptLogprobs: (choice, piece) => addPromptEntries(entriesOf(choice), choice, piece),
    delta: (choice, delta) => {
      if (!begun.has(choice.index)) begin(choice);
      if (delta.text !== '' || (delta.entries.length > 0 && shape.needsEntries))
        stream.send(shape.deltaChunk(choice, delta));
    },
    finished: (choice, reason) => stream.send(shape.finishChunk(choice, reason)),
  };
}
