// Schemas of request bodies: types and ranges of the supported fields.
import { z } from 'zod';
import { promptSchema } from './prompt-schema.ts';
import { responseFormat, structuredOutputs } from './structured-output.ts';

/** More than fit any context; a longer list is refused before its members are checked. */
export const messagesMax = 16_384;
const biasesMax = 16_384;
const stopCharactersMax = 1024;
const saltCharactersMax = 256;
export const classCharactersMax = 64;
export const callIdCharactersMax = 256;
const callsMax = 1024;
export const toolsMax = 1024;

/** A list: its length is checked before its members. */
export function list<T extends z.ZodType>(member: T, least: number, most: number) {
  const fits = (value: unknown): boolean => Array.isArray(value) && value.length >= least && value.length <= most;
  return z.custom<unknown[]>(fits, `expected a list of ${least} to ${most}`).pipe(z.array(member));
}

/** Other members of messages and parts, which must be empty. */
const nothing = z.custom<unknown>(isEmpty, 'is not supported yet');

function isEmpty(value: unknown): boolean {
  if (value === '' || value === false) return true;
  return typeof value === 'object' && value !== null && Object.keys(value).length === 0;
}

/** Marks a prefix to cache; the prefix cache needs no marks. */
const cacheControl = z.unknown().optional();
const textPart = z.object({ type: z.literal('text'), text: z.string(), cache_control: cacheControl }).catchall(nothing);
const content = z.union([z.string(), list(textPart, 0, messagesMax)], 'expected text or a list of text parts');

export const toolName = z.string().regex(/^[a-zA-Z0-9_.-]{1,128}$/, 'must have 1 to 128 letters, digits, _, - or .');

/** A call of an earlier assistant message. */
const toolCall = z
  .object({
    id: z.string().min(1).max(callIdCharactersMax),
    type: z.literal('function').optional(),
    function: z.object({ name: toolName, arguments: z.string() }).catchall(nothing),
    index: z.number().optional(),
  })
  .catchall(nothing);

const message = z
  .object({
    role: z.enum(['system', 'developer', 'user', 'assistant', 'tool']),
    /** Optional beside `tool_calls`. */
    content: content.optional(),
    name: z.string().optional(),
    tool_calls: list(toolCall, 0, callsMax).optional(),
    /** The call that a message of role `tool` answers. */
    tool_call_id: z.string().max(callIdCharactersMax).optional(),
    /** Passed to the chat template, for the reasoning of earlier turns. */
    reasoning_content: z.string().optional(),
    cache_control: cacheControl,
  })
  .catchall(nothing)
  .superRefine(({ role, content: text, tool_calls: calls = [], tool_call_id: id }, { addIssue }) => {
    const refuse = (path: string, message: string): void => addIssue({ code: 'custom', path: [path], message });
    if (text === undefined && calls.length === 0) refuse('content', 'is missing');
    if (role !== 'assistant' && calls.length > 0) refuse('tool_calls', 'must belong to an assistant message');
    if (role === 'tool' && id === undefined) refuse('tool_call_id', 'is missing');
    if (role !== 'tool' && id !== undefined) refuse('tool_call_id', "must belong to a message of role 'tool'");
  });

/** A tool as clients send it; its parameters are a JSON Schema. */
const tool = z.object({
  type: z.literal('function'),
  function: z
    .object({
      name: toolName,
      description: z.string().nullish(),
      parameters: z.record(z.string(), z.unknown()).nullish(),
      strict: z.boolean().nullish(),
    })
    .catchall(nothing),
  cache_control: cacheControl,
});

const toolChoice = z.union(
  [
    z.enum(['none', 'auto', 'required']),
    z.object({ type: z.literal('function'), function: z.object({ name: toolName }) }),
  ],
  "expected 'none', 'auto', 'required' or a function",
);

const logitBias = z
  .custom<Record<string, number>>(
    (value) => typeof value === 'object' && value !== null && Object.keys(value).length <= biasesMax,
    `expected an object of at most ${biasesMax} members`,
  )
  .pipe(z.record(z.string().regex(/^(0|[1-9]\d*)$/, 'must be a token id'), z.number().min(-100).max(100)));

const tokenId = z.number().int().min(0);
export const stopString = z.string().min(1).max(stopCharactersMax);

/** Fields of sampling and output of both endpoints, after nulls were removed. */
export const shared = {
  model: z.string(),
  temperature: z.number().min(0).max(2).optional(),
  top_p: z.number().gt(0).max(1).optional(),
  top_k: z.number().int().min(-1).optional(),
  min_p: z.number().min(0).max(1).optional(),
  // A smaller penalty would make logits overflow.
  repetition_penalty: z.number().min(0.01).max(10).optional(),
  frequency_penalty: z.number().min(-2).max(2).optional(),
  presence_penalty: z.number().min(-2).max(2).optional(),
  logit_bias: logitBias.optional(),
  // Beyond 2^53 the nearest number that JSON's readers give counts.
  seed: z
    .number()
    .refine((seed) => Number.isInteger(seed) && Math.abs(seed) <= 2 ** 64, 'must be an integer of at most 64 bits')
    .optional(),
  min_tokens: z.number().int().min(0).optional(),
  n: z.number().int().min(1).max(16).optional(),
  stop: z
    .union([z.literal(''), stopString, list(stopString, 0, 16)], 'expected text or a list of up to 16 texts')
    .optional(),
  stop_token_ids: list(tokenId, 0, 64).optional(),
  ignore_eos: z.boolean().optional(),
  response_format: responseFormat.optional(),
  structured_outputs: structuredOutputs.optional(),
  stream: z.boolean().optional(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().optional(), include_obfuscation: z.literal(false).optional() })
    .optional(),
  return_token_ids: z.boolean().optional(),
  skip_special_tokens: z.boolean().optional(),
  return_tokens_as_token_ids: z.boolean().optional(),
  cache_salt: z.string().max(saltCharactersMax).optional(),
  slo_class: z.string().max(classCharactersMax).optional(),
  kv_budget: z.union([z.number().int().min(1), z.literal('full')], "expected a number of tokens or 'full'").optional(),
  priority: z.number().int().min(-1000).max(1000).optional(),
};

export const chatSchema = z.object({
  ...shared,
  messages: list(message, 1, messagesMax),
  max_tokens: z.number().int().min(1).optional(),
  max_completion_tokens: z.number().int().min(1).optional(),
  logprobs: z.boolean().optional(),
  top_logprobs: z.number().int().min(0).max(20).optional(),
  chat_template_kwargs: z.record(z.string().max(classCharactersMax), z.unknown()).optional(),
  reasoning_effort: z.string().min(1).max(classCharactersMax).optional(),
  /** `none` leaves reasoning in the content. */
  reasoning_format: z.enum(['auto', 'deepseek', 'none']).optional(),
  tools: list(tool, 0, toolsMax).optional(),
  tool_choice: toolChoice.optional(),
  parallel_tool_calls: z.boolean().optional(),
  add_generation_prompt: z.boolean().optional(),
  continue_final_message: z.boolean().optional(),
});

export const completionSchema = z.object({
  ...shared,
  prompt: promptSchema,
  max_tokens: z.number().int().min(0).optional(),
  logprobs: z.number().int().min(0).max(20).optional(),
  echo: z.boolean().optional(),
});

/** A prefix that is pinned for `ttl` seconds. */
export const contextSchema = z.object({
  model: z.string(),
  prompt: promptSchema.optional(),
  messages: list(message, 1, messagesMax).optional(),
  tools: list(tool, 0, toolsMax).optional(),
  ttl: z.number().int().min(1).max(86_400).optional(),
  cache_salt: shared.cache_salt,
});

type ToolField = 'tools' | 'tool_choice' | 'parallel_tool_calls';
type TemplateField =
  | 'chat_template_kwargs'
  | 'reasoning_format'
  | 'reasoning_effort'
  | 'add_generation_prompt'
  | 'continue_final_message';
export type ChatBody = z.infer<typeof chatSchema>;
export type CompletionBody = z.infer<typeof completionSchema>;
export type SharedBody = Omit<
  ChatBody,
  'messages' | 'logprobs' | 'top_logprobs' | 'max_completion_tokens' | TemplateField | ToolField
>;
