// Runs prompts to their pooled hidden states: what embeddings and rerankings share.
import type { Pooling, SamplingParams } from '../../core/protocol/ports.ts';
import { ApiError } from '../http/errors.ts';
import { ChoiceOutput } from '../openai/choice-output.ts';
import {
  type EndpointCall,
  type EndpointContext,
  type PlanCall,
  type PlanContext,
  priorityOf,
  runToEnd,
  saltOf,
  sloClassOf,
} from '../openai/endpoint.ts';
import type { Choice, ChoiceHandler, Usage } from '../openai/run-choices.ts';
import type { SharedBody } from '../openai/schema.ts';

export interface PooledPrompt {
  readonly tokens: Int32Array;
  /** The first token of the second text of a pair; undefined: there is one text. */
  readonly pairFrom?: number;
}

interface PooledOptions extends Pick<SharedBody, 'priority' | 'slo_class' | 'cache_salt'> {
  readonly pooling: Pooling;
  /** The field that has the prompts. */
  readonly field: string;
}

/** Nothing is sampled. */
const sampling: SamplingParams = {
  ...{ temperature: 0, topP: 1, topK: 0, minP: 0, seed: [0, 0], logitBias: [] },
  ...{ repetitionPenalty: 1, frequencyPenalty: 0, presencePenalty: 0 },
  ...{ topLogprobs: undefined, promptLogprobs: false },
};

/** Prompts ready to run: `handler` stores the vector of each in `vectors`. */
export interface PooledPlan {
  readonly choices: readonly Choice[];
  readonly handler: ChoiceHandler;
  readonly vectors: readonly Float32Array[];
}

/**
 * One vector for each prompt, not normalised. All run as requests of their own, in one batch where they fit.
 * @throws ApiError 400 for a prompt longer than the context
 */
export async function pooledVectors(
  prompts: readonly PooledPrompt[],
  options: PooledOptions,
  context: EndpointContext,
  call: EndpointCall,
): Promise<{ readonly vectors: readonly Float32Array[]; readonly usage: Usage }> {
  const { choices, handler, vectors } = planPooled(prompts, options, context, call);
  return { usage: await runToEnd(choices, handler, context, call), vectors };
}

/** @throws ApiError 400 for a prompt longer than the context */
export function planPooled(
  prompts: readonly PooledPrompt[],
  { pooling, field, ...body }: PooledOptions,
  context: PlanContext,
  call: PlanCall,
): PooledPlan {
  for (const [index, { tokens }] of prompts.entries()) checkLength(tokens.length, index, field, context);
  const sloClass = sloClassOf(body, context, call);
  const priority = priorityOf(body, sloClass, context, call);
  const choices = prompts.map(
    ({ tokens, pairFrom }, index): Choice => ({
      index,
      output: new ChoiceOutput(undefined, { stops: undefined, stopIds: new Set(), atStart: true }),
      request: {
        id: `${call.requestId}-${index}`,
        prompt: tokens,
        maxTokens: 0,
        sampling,
        pooling,
        ...(pairFrom !== undefined && { pairFrom }),
        stopTokenIds: [],
        priority,
        ...(sloClass !== undefined && { sloClass }),
        // An encoder's blocks depend on the whole text: no other request has the same.
        salt: `${saltOf(body.cache_salt, call.caller)}${context.model.generates === false && context.model.rankingRow === undefined ? `\0${call.requestId}-${index}` : ''}`,
        tenant: call.caller.name,
        ...(call.batch && { batch: true }),
        ...(call.trace !== undefined && { trace: call.trace }),
      },
    }),
  );
  const vectors: Float32Array[] = prompts.map(() => new Float32Array(0));
  const handler = {
    promptLogprobs: () => {},
    delta: () => {},
    finished: () => {},
    embedding: ({ index }: Choice, values: Float32Array): void => {
      vectors[index] = values;
    },
  };
  return { choices, handler, vectors };
}

function checkLength(tokens: number, index: number, field: string, { model }: PlanContext): void {
  if (tokens <= model.contextTokens) return;
  throw new ApiError(
    400,
    `Cannot fit request: the context is ${model.contextTokens} tokens, entry ${index} of '${field}' has ${tokens}`,
    { code: 'context_length_exceeded', param: field },
  );
}
