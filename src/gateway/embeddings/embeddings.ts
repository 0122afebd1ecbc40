// POST /v1/embeddings, in the shape of OpenAI: one vector for each input.
import { z } from 'zod';
import { badField } from '../http/errors.ts';
import type { EmbeddingSupport, ServedModel } from '../http/served-model.ts';
import {
  checkChoices,
  checkModel,
  type EndpointCall,
  type EndpointContext,
  type PlanCall,
  type PlanContext,
  runToEnd,
} from '../openai/endpoint.ts';
import { parseBody } from '../openai/fields.ts';
import { completionPrompts } from '../openai/prompt.ts';
import { promptCount, promptSchema } from '../openai/prompt-schema.ts';
import { shared } from '../openai/schema.ts';
import { planPooled } from './pooled-vectors.ts';

export const embeddingSchema = z.object({
  model: z.string(),
  input: promptSchema,
  encoding_format: z.enum(['float', 'base64']).optional(),
  dimensions: z.number().int().min(1).optional(),
  pooling: z.enum(['last', 'mean', 'cls']).optional(),
  priority: shared.priority,
  slo_class: shared.slo_class,
  cache_salt: shared.cache_salt,
});

type EmbeddingBody = z.infer<typeof embeddingSchema>;

/** @throws ApiError 400 naming the field, 404 for another model */
export async function embeddings(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response> {
  const body = parseBody(embeddingSchema, json, context);
  const { choices, handler, vectors } = await planEmbeddings(body, context, call);
  const usage = await runToEnd(choices, handler, context, call);
  const encode = body.encoding_format === 'base64' ? base64Of : (values: Float32Array) => Array.from(values);
  const data = vectors().map((values, index) => ({ object: 'embedding', index, embedding: encode(values) }));
  const { promptTokens: tokens } = usage;
  return Response.json({
    object: 'list',
    data,
    model: context.model.id,
    usage: { prompt_tokens: tokens, total_tokens: tokens },
  });
}

/**
 * Embeddings ready to run; `vectors` gives those of length 1 after the run.
 * @throws ApiError 400 naming the field, 404 for another model
 */
export async function planEmbeddings(body: EmbeddingBody, context: PlanContext, call: PlanCall) {
  const { model } = context;
  checkModel(body.model, model);
  if (!call.batch) context.usage.check(call.caller);
  const support = embeddingSupport(model);
  const pooling = poolingOf(body.pooling, support);
  const dimensions = dimensionsOf(body.dimensions, support);
  checkChoices(promptCount(body.input), undefined, context, 'input');
  const inputs = await completionPrompts({ prompt: body.input }, model, context.encode, 'input');
  const prompts = inputs.map((tokens) => ({ tokens }));
  const { choices, handler, vectors } = planPooled(prompts, { ...body, pooling, field: 'input' }, context, call);
  return { choices, handler, vectors: () => vectors.map((values) => normalised(values.subarray(0, dimensions))) };
}

function embeddingSupport({ id, embedding }: ServedModel): EmbeddingSupport {
  if (embedding !== undefined) return embedding;
  throw badField('model', `Cannot embed: model '${id}' yields no embeddings`, 'unsupported_model');
}

function poolingOf(requested: z.infer<typeof embeddingSchema>['pooling'], { pooling, poolings }: EmbeddingSupport) {
  if (requested === undefined || poolings.includes(requested)) return requested ?? pooling;
  throw badField(
    'pooling',
    `Cannot accept request: 'pooling' is '${requested}', the model has ${poolings.map((name) => `'${name}'`).join(', ')}`,
  );
}

/** Elements of a vector. Shorter vectors keep their meaning only if the model was trained for it (Matryoshka). */
function dimensionsOf(requested: number | undefined, { columns, matryoshka }: EmbeddingSupport): number {
  if (requested === undefined || requested === columns) return columns;
  const refused = (why: string) =>
    badField('dimensions', `Cannot accept request: 'dimensions' is ${requested}, ${why}`);
  if (matryoshka === undefined) throw refused(`the model has ${columns} and states no Matryoshka dimensions`);
  if (matryoshka === 'any' && requested > columns) throw refused(`the model has at most ${columns}`);
  if (matryoshka !== 'any' && !matryoshka.includes(requested))
    throw refused(`the model has ${[...new Set([...matryoshka, columns])].join(', ')}`);
  return requested;
}

/** The vector with length 1; a vector of zeros stays. */
function normalised(values: Float32Array): Float32Array {
  const length = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  return length === 0 ? values : values.map((value) => value / length);
}

/** The values as little-endian float32. */
function base64Of(values: Float32Array): string {
  const bytes = Buffer.alloc(4 * values.length);
  for (const [i, value] of values.entries()) bytes.writeFloatLE(value, 4 * i);
  return bytes.toString('base64');
}
