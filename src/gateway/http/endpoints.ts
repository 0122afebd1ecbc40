// The routes that a model answers, by path.

import { countSchema, messagesDialect, messagesSchema } from '../anthropic/message-schema.ts';
import { countTokens, createMessage } from '../anthropic/messages.ts';
import { embeddingSchema, embeddings } from '../embeddings/embeddings.ts';
import { rerank, rerankSchema } from '../embeddings/rerank.ts';
import { chatCompletions } from '../openai/chat.ts';
import { completions } from '../openai/completions.ts';
import type { Endpoint } from '../openai/endpoint.ts';
import { chatSchema, completionSchema } from '../openai/schema.ts';
import { detokenize, detokenizeSchema, tokenize, tokenizeSchema } from '../openai/tokenize.ts';
import { inputSchema, responsesDialect, responsesSchema } from '../responses/response-schema.ts';
import { countInputTokens, createResponse } from '../responses/responses.ts';

const responses = { dialect: responsesDialect };
const messages = { dialect: messagesDialect };
const tokens = { hasDefaultModel: true };

export const endpoints = {
  '/v1/chat/completions': { answer: chatCompletions, schema: chatSchema },
  '/v1/completions': { answer: completions, schema: completionSchema },
  '/v1/responses': { answer: createResponse, schema: responsesSchema, ...responses },
  '/v1/responses/input_tokens': { answer: countInputTokens, schema: inputSchema, ...responses },
  '/v1/messages': { answer: createMessage, schema: messagesSchema, ...messages },
  '/v1/messages/count_tokens': { answer: countTokens, schema: countSchema, ...messages },
  '/v1/embeddings': { answer: embeddings, schema: embeddingSchema },
  '/v1/rerank': { answer: rerank, schema: rerankSchema },
  '/tokenize': { answer: tokenize, schema: tokenizeSchema, ...tokens },
  '/detokenize': { answer: detokenize, schema: detokenizeSchema, ...tokens },
} satisfies Readonly<Record<string, Endpoint>>;
