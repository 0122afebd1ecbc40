// What request bodies may hold: types and ranges of the fields we serve.
import { z } from 'zod';

const textPart = z.object({ type: z.literal('text'), text: z.string() });
const content = z.union([z.string(), z.array(textPart)]);

const message = z.object({
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content,
  name: z.string().optional(),
});

const logitBias = z.record(z.string().regex(/^\d+$/, 'keys are token ids'), z.number().min(-100).max(100));
const tokenId = z.number().int().min(0);

/** Fields of sampling and output that both endpoints share. `null` was removed before. */
const shared = {
  model: z.string(),
  temperature: z.number().min(0).max(2).optional(),
  top_p: z.number().gt(0).max(1).optional(),
  top_k: z.number().int().min(-1).optional(),
  min_p: z.number().min(0).max(1).optional(),
  repetition_penalty: z.number().gt(0).max(10).optional(),
  frequency_penalty: z.number().min(-2).max(2).optional(),
  presence_penalty: z.number().min(-2).max(2).optional(),
  logit_bias: logitBias.optional(),
  seed: z.number().int().min(Number.MIN_SAFE_INTEGER).max(Number.MAX_SAFE_INTEGER).optional(),
  n: z.number().int().min(1).max(16).optional(),
  stop: z.union([z.string().min(1), z.array(z.string().min(1)).max(16)]).optional(),
  stop_token_ids: z.array(tokenId).max(64).optional(),
  ignore_eos: z.boolean().optional(),
  stream: z.boolean().optional(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().optional(), include_obfuscation: z.boolean().optional() })
    .optional(),
  return_token_ids: z.boolean().optional(),
  return_tokens_as_token_ids: z.boolean().optional(),
  priority: z.number().int().min(-1000).max(1000).optional(),
};

export const chatSchema = z.object({
  ...shared,
  messages: z.array(message).min(1),
  max_tokens: z.number().int().min(1).optional(),
  max_completion_tokens: z.number().int().min(1).optional(),
  logprobs: z.boolean().optional(),
  top_logprobs: z.number().int().min(0).max(20).optional(),
});

export const completionSchema = z.object({
  ...shared,
  prompt: z.union([
    z.string(),
    z.array(z.string()).min(1),
    z.array(tokenId).min(1),
    z.array(z.array(tokenId).min(1)).min(1),
  ]),
  max_tokens: z.number().int().min(0).optional(),
  logprobs: z.number().int().min(0).max(20).optional(),
  echo: z.boolean().optional(),
});

export type ChatBody = z.infer<typeof chatSchema>;
export type CompletionBody = z.infer<typeof completionSchema>;
export type SharedBody = Omit<ChatBody, 'messages' | 'logprobs' | 'top_logprobs' | 'max_completion_tokens'>;
