// POST /tokenize and /detokenize, in the shapes of vLLM: the token ids of a text or of messages, and the text of ids.
import { z } from 'zod';
import { decodeTokens } from '../../text/detokenizer.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';
import { badField } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import { checkModel, type EndpointContext } from './endpoint.ts';
import { parseBody } from './fields.ts';
import { checkTokenId } from './params.ts';
import { chatPrompt, type Encode, refuseLongText, tokenizeText } from './prompt.ts';
import { tokenIdsSchema } from './prompt-schema.ts';
import { chatSchema } from './schema.ts';
import { TokenNames } from './token-names.ts';

const { messages, tools, add_generation_prompt, continue_final_message, chat_template_kwargs, reasoning_effort } =
  chatSchema.shape;

export const tokenizeSchema = z.object({
  ...{ add_generation_prompt, continue_final_message, chat_template_kwargs, reasoning_effort },
  model: z.string().optional(),
  prompt: z.string().optional(),
  messages: messages.optional(),
  tools,
  add_special_tokens: z.boolean().optional(),
  return_token_strs: z.boolean().optional(),
});

export const detokenizeSchema = z.object({ model: z.string().optional(), tokens: tokenIdsSchema });

/** @throws ApiError 400 naming the field, 404 for another model */
export async function tokenize(json: unknown, context: EndpointContext): Promise<Response> {
  const body = parseBody(tokenizeSchema, json, context);
  const { model, encode } = context;
  if (body.model !== undefined) checkModel(body.model, model);
  const tokens = await tokensOf(body, model, encode);
  const names = new TokenNames(model.tokenizer, false);
  return Response.json({
    count: tokens.length,
    max_model_len: model.contextTokens,
    tokens: [...tokens],
    token_strs: body.return_token_strs === true ? Array.from(tokens, (id) => names.name(id).token) : null,
  });
}

async function tokensOf(
  { prompt, messages, add_special_tokens: addSpecial, ...options }: z.infer<typeof tokenizeSchema>,
  model: ServedModel,
  encode: Encode,
): Promise<Int32Array> {
  if ((prompt === undefined) === (messages === undefined))
    throw badField('prompt', "Cannot tokenize: send one of 'prompt' and 'messages'");
  if (messages === undefined) {
    if (model.engineText === undefined) tokenizerOf(model, 'prompt');
    else refuseLongText(prompt ?? '', 'prompt', model);
    return tokenizeText(prompt ?? '', 'prompt', addSpecial ?? true, encode);
  }
  // A rendered template has its special tokens already.
  const body = { ...options, model: model.id, messages };
  const { tokens } = await chatPrompt(body, model, (text) => encode(text, addSpecial ?? false));
  return tokens;
}

/** @throws ApiError 400 naming the field, 404 for another model */
export async function detokenize(json: unknown, context: EndpointContext): Promise<Response> {
  const body = parseBody(detokenizeSchema, json, context);
  const { model } = context;
  if (body.model !== undefined) checkModel(body.model, model);
  const tokenizer = tokenizerOf(model, 'tokens');
  for (const id of body.tokens) checkTokenId(id, 'tokens', model);
  return Response.json({ prompt: decodeTokens(tokenizer, body.tokens, { skipSpecial: false }) });
}

function tokenizerOf({ id, tokenizer }: ServedModel, field: string): Tokenizer {
  if (tokenizer !== undefined) return tokenizer;
  throw badField(field, `Cannot tokenize: model '${id}' has no tokenizer`);
}
