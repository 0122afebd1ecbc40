// The schema of the body of /v1/responses: types and ranges of the supported fields.
import { z } from 'zod';
import { anything, type Dialect, oneOf } from '../openai/fields.ts';
import {
  callIdCharactersMax,
  classCharactersMax,
  list,
  messagesMax,
  shared,
  toolName,
  toolsMax,
} from '../openai/schema.ts';
import { responseFormat } from '../openai/structured-output.ts';

const textPart = z.discriminatedUnion(
  'type',
  [
    z.object({ type: z.enum(['input_text', 'output_text', 'text']), text: z.string() }),
    z.object({ type: z.literal('refusal'), refusal: z.string() }),
  ],
  'must be a part of the type input_text or output_text',
);
const content = z.union([z.string(), list(textPart, 0, messagesMax)], 'expected text or a list of text parts');
export type ItemContent = z.infer<typeof content>;

const item = z.preprocess(
  // A message needs no type.
  (value) =>
    typeof value === 'object' && value !== null && !('type' in value) ? { type: 'message', ...value } : value,
  z.discriminatedUnion(
    'type',
    [
      z.object({
        type: z.literal('message'),
        role: z.enum(['user', 'assistant', 'system', 'developer']),
        content,
      }),
      z.object({
        type: z.literal('function_call'),
        call_id: z.string().min(1).max(callIdCharactersMax),
        name: toolName,
        arguments: z.string(),
      }),
      z.object({
        type: z.literal('function_call_output'),
        call_id: z.string().min(1).max(callIdCharactersMax),
        output: content,
      }),
      z.object({
        type: z.literal('reasoning'),
        summary: list(z.object({ text: z.string() }), 0, messagesMax).optional(),
        content: list(z.object({ text: z.string() }), 0, messagesMax).optional(),
      }),
    ],
    'must be an item of the type message, function_call, function_call_output or reasoning: this server stores no items',
  ),
);
export type InputItem = z.infer<typeof item>;

const tool = z.object({
  type: z.literal('function', 'must be a tool of the client, of the type function'),
  name: toolName,
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
  strict: z.boolean().nullish(),
});

const toolChoice = z.union(
  [z.enum(['none', 'auto', 'required']), z.object({ type: z.literal('function'), name: toolName })],
  "expected 'none', 'auto', 'required' or a function",
);

const { json_schema } = { json_schema: responseFormat.options[2].shape.json_schema };

const textFormat = z.discriminatedUnion(
  'type',
  [
    z.object({ type: z.literal('text') }),
    z.object({ type: z.literal('json_object') }),
    json_schema.extend({ type: z.literal('json_schema') }),
  ],
  'must have the type text, json_object or json_schema',
);

/** Fields with the name and meaning that they have in chat requests. */
const {
  n: _choices,
  return_token_ids: _ids,
  return_tokens_as_token_ids: _spelling,
  stream_options: _stream,
  response_format: _format,
  structured_outputs: _outputs,
  ...sampling
} = shared;

export { sampling };

export const responsesSchema = z.object({
  ...sampling,
  input: z.union([z.string(), list(item, 0, messagesMax)], 'expected text or a list of items'),
  instructions: z.string().optional(),
  max_output_tokens: z.number().int().min(1).optional(),
  reasoning: z
    .object({ effort: z.string().min(1).max(classCharactersMax).optional(), summary: z.string().optional() })
    .optional(),
  text: z.object({ format: textFormat.nullish(), verbosity: z.literal('medium').nullish() }).optional(),
  tools: list(tool, 0, toolsMax).optional(),
  tool_choice: toolChoice.optional(),
  parallel_tool_calls: z.boolean().optional(),
  stream_options: z.strictObject({ include_obfuscation: z.literal(false).optional() }).optional(),
  metadata: z.record(z.string(), z.unknown()).optional(),
  chat_template_kwargs: z.record(z.string().max(classCharactersMax), z.unknown()).optional(),
  prompt_cache_options: z
    .object({
      mode: z.enum(['implicit', 'explicit']).optional(),
      ttl: z
        .string()
        .regex(/^([1-9]\d?m|([1-9]|1\d|2[0-4])h)$/, "must be '1m' to '99m' or '1h' to '24h'")
        .optional(),
    })
    .optional(),
  // These need responses that the server keeps.
  store: z.unknown().optional(),
  background: z.unknown().optional(),
  previous_response_id: z.unknown().optional(),
  conversation: z.unknown().optional(),
  prompt: z.unknown().optional(),
});
/** The fields that make up a prompt. */
export const inputSchema = responsesSchema.pick({
  ...{ model: true, input: true, instructions: true, tools: true, tool_choice: true, parallel_tool_calls: true },
  ...{ reasoning: true, text: true, chat_template_kwargs: true, conversation: true, previous_response_id: true },
});
export type ResponsesBody = z.infer<typeof responsesSchema>;

export const responsesDialect: Dialect = {
  unsupported: {
    user: anything,
    safety_identifier: anything,
    prompt_cache_key: anything,
    prompt_cache_retention: anything,
    service_tier: oneOf('auto', 'default'),
    truncation: oneOf('disabled'),
    // Tools of the server, which has none.
    max_tool_calls: anything,
    top_logprobs: oneOf(0),
    include: (value) => Array.isArray(value) && value.every((entry) => entry === 'reasoning.encrypted_content'),
  },
  keepsNulls: new Set(['tools', 'text']),
};
