// POST /v1/rerank, in the shape of Jina, Cohere and vLLM: documents by their relevance to a query.
import { setImmediate } from 'node:timers/promises';
import { z } from 'zod';
import { ApiError, badField } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import {
  checkChoices,
  checkModel,
  type EndpointCall,
  type EndpointContext,
  throwIfDisconnected,
} from '../openai/endpoint.ts';
import { parseBody } from '../openai/fields.ts';
import { type Encode, refuseLongText, tokenise } from '../openai/prompt.ts';
import { list, shared } from '../openai/schema.ts';
import { type PooledPrompt, pooledVectors } from './pooled-vectors.ts';

const documentsMax = 16_384;
const document = z.union([z.string(), z.object({ text: z.string() })], 'expected text or an object with text');
const rerankSchema = z.object({
  model: z.string(),
  query: z.string(),
  documents: list(document, 1, documentsMax),
  top_n: z.number().int().min(1).optional(),
  return_documents: z.boolean().optional(),
  priority: shared.priority,
  slo_class: shared.slo_class,
  cache_salt: shared.cache_salt,
});

/** @throws ApiError 400 naming the field, or for a model that is no reranker; 404 for another model */
export async function rerank(json: unknown, context: EndpointContext, call: EndpointCall): Promise<Response> {
  const body = parseBody(rerankSchema, json, context);
  const { model } = context;
  checkModel(body.model, model);
  if (!call.batch) context.usage.check(call.caller);
  checkReranker(model);
  checkChoices(body.documents.length, undefined, context, 'documents');
  const texts = body.documents.map((entry) => (typeof entry === 'string' ? entry : entry.text));
  const pairs = await pairsOf(body.query, texts, model, context.encode, call.signal);
  const options = { ...body, pooling: 'cls', field: 'documents' } as const;
  const { vectors, usage } = await pooledVectors(pairs, options, context, call);
  const results = vectors
    .map(([logit], index) => ({ index, relevance_score: 1 / (1 + Math.exp(-logit)) }))
    .sort((a, b) => b.relevance_score - a.relevance_score || a.index - b.index)
    .slice(0, body.top_n)
    .map((result) => (body.return_documents ? { ...result, document: { text: texts[result.index] } } : result));
  const { promptTokens: tokens } = usage;
  const id = call.requestId.replace(/^req/, 'rerank');
  return Response.json({ id, model: model.id, results, usage: { prompt_tokens: tokens, total_tokens: tokens } });
}

function checkReranker({ id, ranks, tokenizer }: ServedModel): void {
  if (ranks !== true) throw badField('model', `Cannot rerank: model '${id}' is no reranker`, 'unsupported_model');
  if (tokenizer === undefined) throw badField('query', `Cannot rerank: model '${id}' has no tokenizer`);
}

/** Query and document as one prompt: the tokens of the document have token type 1. */
async function pairsOf(
  query: string,
  documents: readonly string[],
  model: ServedModel,
  encode: Encode,
  signal: AbortSignal,
): Promise<readonly PooledPrompt[]> {
  const { contextTokens } = model;
  refuseLongText(query, 'query', model);
  const first = await tokenise(query, 'query', true, encode);
  if (first.length > contextTokens)
    throw new ApiError(400, `Cannot fit request: the context is ${contextTokens} tokens, 'query' has ${first.length}`, {
      code: 'context_length_exceeded',
      param: 'query',
    });
  // Begin and end tokens are around the query; a second end token follows the document.
  const pairs: PooledPrompt[] = [];
  for (const text of documents) {
    refuseLongText(text, 'documents', model);
    const second = await tokenise(text, 'documents', false, encode);
    const tokens = new Int32Array(first.length + second.length + 1);
    tokens.set(first);
    tokens.set(second, first.length);
    tokens[tokens.length - 1] = first[first.length - 1];
    pairs.push({ tokens, pairFrom: first.length });
    // Other requests have their turn between two documents.
    await setImmediate();
    throwIfDisconnected(signal);
  }
  return pairs;
}
