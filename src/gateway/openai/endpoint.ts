// What both generating endpoints share: their context, the choices of a request, streams and usage.

import { setImmediate } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { z } from 'zod';
import type { Grammar, GrammarCompiler } from '../../core/protocol/grammar.ts';
import type { ClusterPort, GenerationRequest, InferencePort, SamplingParams } from '../../core/protocol/ports.ts';
import { StopMatcher } from '../../text/stop-matcher.ts';
import { oneLine } from '../../util/one-line.ts';
import { ApiError, badField, toApiError } from '../http/errors.ts';
import type { RequestLine, RequestOutcome } from '../http/request-line.ts';
import type { ServedModel } from '../http/served-model.ts';
import { SseStream } from '../http/sse.ts';
import type { Caller } from '../keys/caller.ts';
import { type CallerUsage, unlimitedUse } from '../keys/caller-usage.ts';
import { type GatewayMetrics, unobserved } from '../metrics/metrics.ts';
import { unknownModel } from '../models/served-models.ts';
import { ChoiceOutput, type ChoiceParser } from './choice-output.ts';
import type { Dialect, UnknownFields } from './fields.ts';
import { choiceSeed, type LogprobRequest, samplingParams, stopStrings, stopTokenIds } from './params.ts';
import type { Encode } from './prompt.ts';
import { type Choice, type ChoiceHandler, clientDisconnected, RunningChoices, type Usage } from './run-choices.ts';
import type { SharedBody } from './schema.ts';

/** The header that names the SLO class of a request. */
export const sloHeader = 'x-kvasir-slo';

/** Pins prefixes that clients mark, for a time. */
export interface PrefixKeeper {
  /** False where `keep` is without effect now: the last prefix was refused. */
  readonly hasMemory: boolean;
  /**
   * Pins the full blocks of a prompt that has just been computed, or extends its time. Without effect where its memory is
   * short. A shorter prefix that was pinned so for the same time becomes an ordinary one.
   */
  keep(prompt: Int32Array, ttlS: number, request: Pick<GenerationRequest, 'salt'>, caller: Caller): void;
}

export interface EndpointContext {
  readonly prefixes: PrefixKeeper;
  readonly model: ServedModel;
  readonly port: InferencePort;
  readonly cluster: ClusterPort;
  readonly metrics: GatewayMetrics;
  readonly usage: CallerUsage;
  readonly encode: Encode;
  /** Undefined: requests with grammars are refused. */
  readonly grammars?: GrammarCompiler | undefined;
  /** Bytes of a stream buffered for a slow client before its request is cancelled. */
  readonly streamBufferBytesMax: number;
  readonly sloClasses: ReadonlyMap<string, { readonly priority: number }>;
  /** Maximum number of choices of one request. */
  readonly choicesMax: number;
  /** Undefined: unknown fields are refused. */
  readonly unknownFields?: UnknownFields | undefined;
  readonly logger: Logger;
}

/** One HTTP request to an endpoint. */
export interface EndpointCall {
  readonly requestId: string;
  /** Arrival by performance.now(). */
  readonly startMs: number;
  readonly caller: Caller;
  /** Undefined for a batch job. */
  readonly line: RequestLine | undefined;
  /** Value of the header `sloHeader`. */
  readonly sloClass: string | undefined;
  /** Its trace context (`traceOf`), if traces are exported. */
  readonly trace: string | undefined;
  /** True for a batch job, which no client waits for. */
  readonly batch: boolean;
  /** Ids of texts that an earlier attempt of a batch job has tokenized (`tokenizedOnce`). */
  readonly tokenized?: Map<string, Int32Array> | undefined;
  /** Aborted when the client closes the connection. */
  readonly signal: AbortSignal;
  /** Takes the stream of the response, to write it to the connection; undefined: the body of the response has the frames. */
  readonly attach?: ((stream: SseStream) => void) | undefined;
}

/** A route that a model answers. */
export interface Endpoint {
  /** Checks a body before its model loads; `answer` parses the body again. */
  readonly schema: z.ZodObject;
  readonly dialect?: Dialect;
  /** True if a body without `model` means the first one. */
  readonly hasDefaultModel?: boolean;
  answer(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response>;
}

/** Runs an endpoint with the model that its request names. */
export type RunEndpoint = (endpoint: Endpoint, json: unknown, call: EndpointCall) => Promise<Response>;

/** What planning a request needs of its endpoint: no HTTP. */
export interface PlanContext
  extends Pick<EndpointContext, 'model' | 'encode' | 'grammars' | 'sloClasses' | 'choicesMax'> {
  readonly usage: Pick<CallerUsage, 'check'>;
}

/** What planning needs of a call. */
export type PlanCall = Pick<EndpointCall, 'requestId' | 'caller' | 'sloClass' | 'trace' | 'batch'>;

export interface PlannedPrompt {
  readonly tokens: Int32Array;
  /** True if the output starts a text instead of continuing the prompt. */
  readonly startsText: boolean;
  readonly maxTokens: number;
  /** Compiled; undefined: the output is free. */
  readonly grammar?: Grammar | undefined;
  /** Parses the output of one choice; undefined: the output is text. */
  readonly parsing?: (() => ChoiceParser) | undefined;
}

/** n choices of each prompt, numbered prompt by prompt. */
export function planChoices(
  prompts: readonly PlannedPrompt[],
  body: SharedBody,
  logprobs: LogprobRequest,
  context: PlanContext,
  call: PlanCall,
): Choice[] {
  if (call.batch && body.stream === true)
    throw badField(
      'stream',
      "Cannot accept request: 'stream' is true: batch requests cannot stream",
      'unsupported_parameter',
    );
  const n = body.n ?? 1;
  refuseTooManyLogprobs(prompts, n, body.stream === true, logprobs);
  const sloClass = sloClassOf(body, context, call);
  const priority = priorityOf(body, sloClass, context, call);
  const salt = saltOf(body.cache_salt, call.caller);
  const sampling = samplingParams(body, context.model, logprobs);
  const kvBudget = kvBudgetOf(body, context.model, sampling);
  const stopTexts = stopStrings(body);
  const stops = stopTexts.length > 0 ? new StopMatcher(stopTexts) : undefined;
  const stopIds = stopTokenIds(body, context.model);
  const stopIdSet = new Set(stopIds);
  const minTokens = minTokensOf(body, prompts);
  return prompts.flatMap(({ tokens, maxTokens, startsText, grammar, parsing }, p) =>
    Array.from({ length: n }, (_, i): Choice => {
      const index = p * n + i;
      return {
        index,
        output: new ChoiceOutput(context.model.tokenizer, {
          stops: stops?.fresh(),
          stopIds: stopIdSet,
          atStart: startsText,
          skipSpecial: body.skip_special_tokens,
          parsing: parsing?.(),
        }),
        request: {
          id: `${call.requestId}-${index}`,
          prompt: tokens,
          maxTokens,
          sampling: { ...sampling, seed: choiceSeed(body.seed, i) },
          stopTokenIds: stopIds,
          ...(context.model.engineText !== undefined && {
            engineText: { ignoresEos: body.ignore_eos === true, keepsSpecial: body.skip_special_tokens === false },
          }),
          ...(minTokens > 0 && { minTokens }),
          ...(grammar !== undefined && maxTokens > 0 && { grammar }),
          priority,
          ...(sloClass !== undefined && { sloClass }),
          ...(kvBudget !== undefined && { kvBudget }),
          salt,
          tenant: call.caller.name,
          ...(call.batch && { batch: true }),
          ...(call.trace !== undefined && { trace: call.trace }),
        },
      };
    }),
  );
}

/** @throws ApiError 400 for more than the output may have */
function minTokensOf({ min_tokens: minTokens = 0 }: SharedBody, prompts: readonly PlannedPrompt[]): number {
  const least = Math.min(...prompts.map(({ maxTokens }) => maxTokens));
  if (minTokens <= least) return minTokens;
  const figures = `'min_tokens' is ${minTokens}, the output has at most ${least}`;
  throw badField('min_tokens', `Cannot accept request: ${figures}`);
}

/** Log-probabilities of one response; each takes some 100 bytes until it is written. */
const logprobsMax = 1_000_000;

/** @throws ApiError 400 with the figures; a stream keeps only those of prompts */
function refuseTooManyLogprobs(
  prompts: readonly PlannedPrompt[],
  n: number,
  isStream: boolean,
  { top, prompt: isScored }: LogprobRequest,
): void {
  if (top === undefined) return;
  const tokensOf = ({ tokens, maxTokens }: PlannedPrompt): number =>
    (isScored ? tokens.length : 0) + (isStream ? 0 : maxTokens);
  const tokens = n * prompts.reduce((sum, prompt) => sum + tokensOf(prompt), 0);
  const count = tokens * (1 + top);
  if (count <= logprobsMax) return;
  const figures = `${tokens} tokens with ${top} alternatives each are ${count} log-probabilities`;
  throw badField('logprobs', `Cannot accept request: ${figures}, a response has at most ${logprobsMax}`);
}

/** The root of a prompt's block hashes: callers of different cache groups share no prefix. */
export function saltOf(salt: string | undefined, { cacheGroup }: Caller): string {
  return cacheGroup === '' ? (salt ?? '') : `${cacheGroup}\0${salt ?? ''}`;
}

/** @throws ApiError 403 above the highest priority of the key */
export function priorityOf(
  { priority }: Pick<SharedBody, 'priority'>,
  sloClass: string | undefined,
  { sloClasses }: PlanContext,
  { caller: { name, limits } }: PlanCall,
): number {
  const most = limits.priority ?? Number.MAX_SAFE_INTEGER;
  if (priority !== undefined && priority > most)
    throw new ApiError(
      403,
      `Cannot accept request of '${name}': 'priority' is ${priority}, its key allows up to ${most}`,
      {
        code: 'priority_not_allowed',
        param: 'priority',
      },
    );
  return Math.min(priority ?? sloClasses.get(sloClass ?? '')?.priority ?? 0, most);
}

/** @throws ApiError 400 where the server does not allow the budget, or the request scores its prompt */
function kvBudgetOf(
  { kv_budget: budget }: SharedBody,
  { kvBudget: allowed }: ServedModel,
  { promptLogprobs }: Pick<SamplingParams, 'promptLogprobs'>,
): GenerationRequest['kvBudget'] {
  if (budget === undefined) return undefined;
  const refused = (why: string): ApiError =>
    badField('kv_budget', `Cannot accept request: 'kv_budget' is ${budget}: ${why}`);
  if (allowed === undefined) throw refused('this server keeps the full KV of every request');
  if (budget === 'full') return budget;
  const { least, most } = allowed;
  if (least === undefined || most === undefined)
    throw refused("this server has a fixed budget for each layer, and accepts 'full'");
  if (budget < least || budget > most) throw refused(`this server accepts ${least} to ${most}, or 'full'`);
  if (promptLogprobs)
    throw refused("with 'echo' and 'logprobs' the prompt keeps its full KV, since its context is not marked");
  return budget;
}

/** From the field of the body or the header. @throws ApiError 400 for an unknown class, or two different ones */
export function sloClassOf(
  body: Pick<SharedBody, 'slo_class'>,
  { sloClasses }: PlanContext,
  { sloClass: header }: PlanCall,
): string | undefined {
  const requested = body.slo_class ?? header;
  const field = body.slo_class === undefined ? sloHeader : 'slo_class';
  if (requested === undefined) return undefined;
  if (header !== undefined && header !== requested) {
    const figures = `'slo_class' is '${requested}' and the header ${sloHeader} is '${header.slice(0, 64)}'`;
    throw badField(field, `Cannot accept request: ${figures}: send one of them`);
  }
  if (sloClasses.has(requested)) return requested;
  const known = [...sloClasses.keys()].join(', ') || 'none';
  throw badField(
    field,
    `Cannot accept request: '${field}' is not an SLO class of this server: got '${oneLine(requested, 64)}', known are ${known}`,
  );
}

/** @throws ApiError 400 for more choices than the limit of accepted requests */
export function checkChoices(
  prompts: number,
  n: number | undefined,
  { choicesMax }: PlanContext,
  field = 'prompt',
): void {
  const choices = prompts * (n ?? 1);
  if (choices <= choicesMax) return;
  throw badField(
    prompts > choicesMax ? field : 'n',
    `Cannot accept request: ${prompts} prompts with ${n ?? 1} choices each are ${choices}, this server accepts ${choicesMax} at once`,
  );
}

/** @throws ApiError 404 */
export function checkModel(name: string, model: ServedModel): void {
  if (name !== model.id) throw unknownModel(name, [model.id]);
}

/** Runs choices to their end; a disconnect of the client cancels them. */
export async function runToEnd(
  choices: readonly Choice[],
  handler: ChoiceHandler,
  context: EndpointContext,
  call: EndpointCall,
): Promise<Usage> {
  throwIfDisconnected(call.signal);
  const running = start(choices, handler, context, call);
  const cancel = (): void => running.cancel();
  call.signal.addEventListener('abort', cancel, { once: true });
  try {
    await running.done;
  } finally {
    call.signal.removeEventListener('abort', cancel);
  }
  return running.usage;
}

/**
 * Starts choices within the limits of their caller, and records what they used when they end.
 * @throws ApiError if a limit or a choice is refused
 */
function start(
  choices: readonly Choice[],
  handler: ChoiceHandler,
  { port, metrics, usage }: EndpointContext,
  { caller, batch, startMs, line }: EndpointCall,
): RunningChoices {
  const prompts = new Set(choices.map(({ request }) => request.prompt));
  const promptTokens = [...prompts].reduce((sum, { length }) => sum + length, 0);
  const use = batch ? unlimitedUse : usage.begin(caller, choices.length, promptTokens);
  const times = batch ? unobserved : metrics.startRequest(startMs, use.started);
  const record = (outcome: RequestOutcome['outcome'], used: Usage): void => {
    use.ended(used.completionTokens);
    const { cachedTokens, completionTokens: outputTokens } = used;
    const ended = { outcome, promptTokens, cachedTokens, outputTokens, ttftMs: times.ttftMs };
    if (!batch) metrics.ended(caller.name, ended);
    line?.ended(ended);
  };
  let running: RunningChoices;
  try {
    running = new RunningChoices(port, choices, handler, times);
  } catch (error) {
    record('failed', { promptTokens, cachedTokens: 0, completionTokens: 0, reasoningTokens: 0 });
    throw error;
  }
  const { usage: used } = running;
  running.done.then(
    () => record('finished', used),
    (error: unknown) => record(toApiError(error).status === 499 ? 'cancelled' : 'failed', used),
  );
  return running;
}

/** What a protocol writes to an event stream. */
export interface StreamShape {
  handler(stream: SseStream): ChoiceHandler;
  /** All choices have finished: writes the last events, and ends the stream. */
  finish(stream: SseStream, usage: Usage): void;
  /** Reports an error after the status line was sent, and ends the stream. */
  fail(stream: SseStream, error: ApiError): void;
}

/** Chunks of OpenAI's completions. The stream ends with `[DONE]`, or after an error without it. */
export function runStreaming(
  choices: readonly Choice[],
  handlerFor: (stream: SseStream) => ChoiceHandler,
  lastChunk: (usage: Usage) => object | undefined,
  context: EndpointContext,
  call: EndpointCall,
): Promise<Response> {
  const shape: StreamShape = {
    handler: handlerFor,
    finish: (stream, usage) => {
      const chunk = lastChunk(usage);
      if (chunk !== undefined) stream.send(chunk);
      stream.done();
    },
    fail: (stream, error) => stream.fail(error.body()),
  };
  return streamResponse(choices, shape, context, call);
}

/**
 * Starts choices that write to an event stream. Throws a refusal on arrival, before the status line is sent; a later
 * refusal is an event of the stream.
 */
export async function streamResponse(
  choices: readonly Choice[],
  shape: StreamShape,
  context: EndpointContext,
  call: EndpointCall,
): Promise<Response> {
  throwIfDisconnected(call.signal);
  let running: RunningChoices | undefined;
  const cancel = (): void => running?.cancel();
  const stream = new SseStream({ bufferBytesMax: context.streamBufferBytesMax, onDisconnect: cancel });
  try {
    running = start(choices, shape.handler(stream), context, call);
  } catch (error) {
    // Ends its timer of comments.
    stream.end();
    throw error;
  }
  call.line?.streams();
  call.signal.addEventListener('abort', cancel, { once: true });
  const { usage } = running;
  running.done
    .then(() => shape.finish(stream, usage))
    .catch((error: unknown) => {
      const apiError = toApiError(error);
      if (apiError.status === 500) context.logger.error({ requestId: call.requestId, err: error }, 'stream failed');
      shape.fail(stream, apiError);
    })
    .finally(() => call.signal.removeEventListener('abort', cancel));
  // The head of the response is made after the request has left for its instance.
  await setImmediate();
  call.attach?.(stream);
  return new Response(call.attach === undefined ? stream.toBody() : null, {
    headers: {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache',
      'x-accel-buffering': 'no',
    },
  });
}

/** The client may have disconnected while its prompt was tokenized. */
export function throwIfDisconnected(signal: AbortSignal): void {
  if (signal.aborted) throw clientDisconnected();
}

export function usageBody(usage: Usage): object {
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    prompt_tokens_details: {
      cached_tokens: usage.cachedTokens,
      ...(usage.keptTokens !== undefined && { kept_tokens: usage.keptTokens }),
    },
    ...(usage.reasoningTokens > 0 && { completion_tokens_details: { reasoning_tokens: usage.reasoningTokens } }),
  };
}
