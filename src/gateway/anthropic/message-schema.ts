// Schemas of the bodies of /v1/messages: types and ranges of the supported fields of the Anthropic protocol.
import { z } from 'zod';
import { anything, type Dialect, oneOf } from '../openai/fields.ts';
import {
  callIdCharactersMax,
  classCharactersMax,
  list,
  messagesMax,
  shared,
  stopString,
  toolName,
  toolsMax,
} from '../openai/schema.ts';

/** Marks the end of a prefix that the client will send again. */
const cacheControl = z.object({ type: z.literal('ephemeral'), ttl: z.enum(['5m', '1h']).nullish() }).nullish();

const text = z.object({ type: z.literal('text'), text: z.string(), cache_control: cacheControl });
const toolUse = z.object({
  type: z.literal('tool_use'),
  id: z.string().min(1).max(callIdCharactersMax),
  name: toolName,
  input: z.record(z.string(), z.unknown()),
  cache_control: cacheControl,
});
const toolResult = z.object({
  type: z.literal('tool_result'),
  tool_use_id: z.string().min(1).max(callIdCharactersMax),
  content: z.union([z.string(), list(text, 0, messagesMax)], 'expected text or a list of text blocks').nullish(),
  is_error: z.boolean().nullish(),
  cache_control: cacheControl,
});
const thinking = z.object({ type: z.literal('thinking'), thinking: z.string(), signature: z.string().nullish() });
/** Reasoning that only the server that wrote it can read. */
const redactedThinking = z.object({ type: z.literal('redacted_thinking'), data: z.string() });

const block = z.discriminatedUnion(
  'type',
  [text, toolUse, toolResult, thinking, redactedThinking],
  'must be a block of the type text, tool_use, tool_result or thinking',
);
export type Block = z.infer<typeof block>;

const message = z.object({
  role: z.enum(['user', 'assistant']),
  content: z.union([z.string(), list(block, 0, messagesMax)], 'expected text or a list of blocks'),
});
export type Message = z.infer<typeof message>;

const tool = z.object({
  type: z.literal('custom', 'must be a tool of the client, of the type custom').nullish(),
  name: toolName,
  description: z.string().nullish(),
  input_schema: z.record(z.string(), z.unknown()),
  strict: z.boolean().nullish(),
  cache_control: cacheControl,
});

const toolChoice = z.discriminatedUnion(
  'type',
  [
    z.object({ type: z.literal('auto'), disable_parallel_tool_use: z.boolean().nullish() }),
    z.object({ type: z.literal('any'), disable_parallel_tool_use: z.boolean().nullish() }),
    z.object({ type: z.literal('tool'), name: toolName, disable_parallel_tool_use: z.boolean().nullish() }),
    z.object({ type: z.literal('none') }),
  ],
  'must have the type auto, any, tool or none',
);

const outputConfig = z.strictObject({
  effort: z.string().min(1).max(classCharactersMax).nullish(),
  format: z.strictObject({ type: z.literal('json_schema'), schema: z.record(z.string(), z.unknown()) }).nullish(),
});

const prompt = {
  model: shared.model,
  messages: list(message, 1, messagesMax),
  system: z.union([z.string(), list(text, 0, messagesMax)], 'expected text or a list of text blocks').optional(),
  tools: list(tool, 0, toolsMax).optional(),
  tool_choice: toolChoice.optional(),
  thinking: z.object({ type: z.enum(['enabled', 'disabled', 'adaptive']) }).optional(),
  output_config: outputConfig.optional(),
  cache_control: cacheControl,
  chat_template_kwargs: z.record(z.string().max(classCharactersMax), z.unknown()).optional(),
};

const { temperature, top_p, top_k, min_p, seed, stream, cache_salt, slo_class, kv_budget, priority } = shared;

export const messagesSchema = z.object({
  ...prompt,
  ...{ temperature, top_p, top_k, min_p, seed, stream, cache_salt, slo_class, kv_budget, priority },
  max_tokens: z.number().int().min(1),
  stop_sequences: list(stopString, 0, 16).optional(),
});
export type MessagesBody = z.infer<typeof messagesSchema>;

export const countSchema = z.object(prompt);
export type PromptBody = z.infer<typeof countSchema>;

/** The arguments of calls and the schemas of tools may have nulls. */
export const messagesDialect: Dialect = {
  unsupported: {
    metadata: anything,
    service_tier: oneOf('auto', 'standard_only'),
    inference_geo: anything,
  },
  keepsNulls: new Set(['messages', 'system', 'tools', 'output_config']),
};
