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
import { refuseLongText, tokenizeText } from '../openai/prompt.ts';
import { list, shared } from '../openai/schema.ts';
import { type PooledPrompt, pooledVectors } from './pooled-vectors.ts';

const documentsMax = 16_384;
const document = z.union([z.string(), z.object({ text: z.string() })], 'expected text or an object with text');
export const rerankSchema = z.object({
  model: z.string(),
  query: z.string(),
  documents: list(document, 1, documentsMax),
  top_n: z.number().int().min(1).optional(),
  return_documents: z.boolean().optional(),
  instruction: z.string().optional(),
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
  const { rankingRow } = model;
  const prompts =
    rankingRow === undefined
      ? await pairsOf(body, texts, context, call.signal)
      : await chatsOf(body, texts, context, call.signal);
  const options = { ...body, pooling: rankingRow === undefined ? 'cls' : 'last', field: 'documents' } as const;
  const { vectors, usage } = await pooledVectors(prompts, options, context, call);
  const logits = vectors.map((vector) =>
    rankingRow === undefined ? (vector[0] as number) : product(vector, rankingRow),
  );
  const results = logits
    .map((logit, index) => ({ index, relevance_score: 1 / (1 + Math.exp(-logit)) }))
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

function product(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * (b[i] as number), 0);
}

type RerankBody = z.infer<typeof rerankSchema>;
type PromptContext = Pick<EndpointContext, 'model' | 'encode'>;

const defaultInstruction = 'Given a web search query, retrieve relevant passages that answer the query';
/** The chat of Qwen3-Reranker, up to its answer. */
const chatBegin =
  '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. ' +
  'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n';
const chatEnd = '<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n';

/** A chat that asks whether the document answers the query. */
export function rankingChat({ query, instruction }: Pick<RerankBody, 'query' | 'instruction'>, text: string): string {
  return chatHead(query, instruction) + text + chatEnd;
}

function chatHead(query: string, instruction = defaultInstruction): string {
  return `${chatBegin}<Instruct>: ${instruction}\n<Query>: ${query}\n<Document>: `;
}

/** Each document in a chat that asks for yes or no. The instruction and the query come first: their blocks are shared. */
async function chatsOf(
  body: RerankBody,
  documents: readonly string[],
  { model, encode }: PromptContext,
  signal: AbortSignal,
): Promise<readonly PooledPrompt[]> {
  refuseLongText(chatHead(body.query, body.instruction), 'query', model);
  const chats: PooledPrompt[] = [];
  for (const text of documents) {
    refuseLongText(text, 'documents', model);
    chats.push({ tokens: await tokenizeText(rankingChat(body, text), 'documents', false, encode) });
    // Other requests have their turn between two documents.
    await setImmediate();
    throwIfDisconnected(signal);
  }
  return chats;
}

/** Query and document as one prompt: the tokens of the document have token type 1. */
async function pairsOf(
  { query, instruction }: RerankBody,
  documents: readonly string[],
  { model, encode }: PromptContext,
  signal: AbortSignal,
): Promise<readonly PooledPrompt[]> {
  if (instruction !== undefined)
    throw badField('instruction', `Cannot rerank: model '${model.id}' reads no instruction`, 'unsupported_parameter');
  const { contextTokens } = model;
  refuseLongText(query, 'query', model);
  const first = await tokenizeText(query, 'query', true, encode);
  if (first.length > contextTokens)
    throw new ApiError(400, `Cannot fit request: the context is ${contextTokens} tokens, 'query' has ${first.length}`, {
      code: 'context_length_exceeded',
      param: 'query',
    });
  // Begin and end tokens are around the query; a second end token follows the document.
  const pairs: PooledPrompt[] = [];
  for (const text of documents) {
    refuseLongText(text, 'documents', model);
    const second = await tokenizeText(text, 'documents', false, encode);
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
