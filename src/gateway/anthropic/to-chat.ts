// Translates requests of the Anthropic protocol into chat requests.
import { badField } from '../http/errors.ts';
import type { ChatBody } from '../openai/schema.ts';
import type { Block, Message, MessagesBody, PromptBody } from './message-schema.ts';

type ChatMessage = ChatBody['messages'][number];
type BlockOf<Type extends Block['type']> = Extract<Block, { type: Type }>;

/** The first block of a system prompt of Claude Code: another text in each request, without meaning for the model. */
const billingHeader = 'x-anthropic-billing-header:';

export function chatOf(body: MessagesBody): ChatBody {
  const { temperature, top_p, top_k, min_p, seed, stream, cache_salt, slo_class, kv_budget, priority } = body;
  return {
    ...promptOf(body),
    ...{ temperature, top_p, top_k, min_p, seed, stream, cache_salt, slo_class, kv_budget, priority },
    max_tokens: body.max_tokens,
    stop: body.stop_sequences,
  };
}

/** The fields that make up the prompt. @throws ApiError 400 for a block in a message of the wrong role */
export function promptOf(body: PromptBody): ChatBody {
  const { tools = [], tool_choice: choice, output_config: output, thinking } = body;
  const messages = [...systemMessages(body.system), ...joined(body.messages).flatMap(messagesOf)];
  const last = messages.at(-1);
  // The output continues a last message of the assistant.
  const continues = last?.role === 'assistant' && last.tool_calls === undefined;
  const isThinking = thinking && { enable_thinking: thinking.type !== 'disabled' };
  return {
    model: body.model,
    messages,
    ...(tools.length > 0 && { tools: tools.map(toolOf) }),
    ...(choice && toolChoiceOf(choice)),
    ...(output?.effort && { reasoning_effort: output.effort }),
    ...(output?.format && { response_format: formatOf(output.format) }),
    ...(continues && { continue_final_message: true }),
    ...((isThinking ?? body.chat_template_kwargs) && {
      chat_template_kwargs: { ...isThinking, ...body.chat_template_kwargs },
    }),
  };
}

function systemMessages(system: PromptBody['system'] = ''): ChatMessage[] {
  const blocks = typeof system === 'string' ? [{ text: system }] : system;
  const kept = blocks.filter(({ text }) => text !== '' && !text.startsWith(billingHeader));
  return kept.length === 0 ? [] : [{ role: 'system', content: textParts(kept) }];
}

interface Turn {
  readonly role: Message['role'];
  /** Each with the place of its field. */
  readonly blocks: { readonly block: Block; readonly field: string }[];
}

/** Messages of one role in sequence are one turn. */
function joined(messages: readonly Message[]): Turn[] {
  const turns: Turn[] = [];
  for (const [m, { role, content }] of messages.entries()) {
    const list: readonly Block[] = typeof content === 'string' ? [{ type: 'text', text: content }] : content;
    const blocks = list.map((block, b) => ({ block, field: `messages.${m}.content.${b}` }));
    const last = turns.at(-1);
    if (last?.role === role) last.blocks.push(...blocks);
    else turns.push({ role, blocks: [...blocks] });
  }
  return turns;
}

const blocksOfRole: Readonly<Record<Message['role'], ReadonlySet<Block['type']>>> = {
  user: new Set(['text', 'tool_result']),
  assistant: new Set(['text', 'tool_use', 'thinking', 'redacted_thinking']),
};

function messagesOf({ role, blocks }: Turn): ChatMessage[] {
  for (const { block, field } of blocks)
    if (!blocksOfRole[role].has(block.type))
      throw badField(field, `Cannot accept request: '${field}' is a block ${block.type} in a message of role ${role}`);
  const list = blocks.map(({ block }) => block);
  return role === 'user' ? userMessages(list) : [assistantMessage(list)];
}

/** Results of tools come before the text of the turn. */
function userMessages(blocks: readonly Block[]): ChatMessage[] {
  const results = ofType(blocks, 'tool_result').map(resultMessage);
  const texts = ofType(blocks, 'text');
  return texts.length === 0 && results.length > 0 ? results : [...results, { role: 'user', content: textParts(texts) }];
}

function resultMessage({ tool_use_id: id, content, is_error: isError }: BlockOf<'tool_result'>): ChatMessage {
  const text = typeof content === 'string' ? content : (content ?? []).map((part) => part.text).join('\n');
  const marked = isError === true && !/^error/i.test(text) ? `Error: ${text}` : text;
  return { role: 'tool', tool_call_id: id, content: marked };
}

function assistantMessage(blocks: readonly Block[]): ChatMessage {
  const reasoning = ofType(blocks, 'thinking').map(({ thinking }) => thinking);
  const calls = ofType(blocks, 'tool_use').map(({ id, name, input }) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: JSON.stringify(input) },
  }));
  return {
    role: 'assistant',
    content: textParts(ofType(blocks, 'text')),
    ...(reasoning.length > 0 && { reasoning_content: reasoning.join('\n') }),
    ...(calls.length > 0 && { tool_calls: calls }),
  };
}

function ofType<Type extends Block['type']>(blocks: readonly Block[], type: Type): BlockOf<Type>[] {
  return blocks.filter((block): block is BlockOf<Type> => block.type === type);
}

/** One text stays a string: some templates accept no parts. */
function textParts(blocks: readonly { readonly text: string }[]): NonNullable<ChatMessage['content']> {
  const [first, second] = blocks;
  if (second === undefined) return first?.text ?? '';
  return blocks.map(({ text }) => ({ type: 'text', text }));
}

function toolOf({ name, description, input_schema, strict }: NonNullable<PromptBody['tools']>[number]) {
  return { type: 'function' as const, function: { name, description, parameters: input_schema, strict } };
}

function toolChoiceOf(choice: NonNullable<PromptBody['tool_choice']>): Partial<ChatBody> {
  const isSingle = choice.type !== 'none' && choice.disable_parallel_tool_use === true;
  const parallel = isSingle ? { parallel_tool_calls: false } : {};
  if (choice.type === 'tool')
    return { tool_choice: { type: 'function', function: { name: choice.name } }, ...parallel };
  return { tool_choice: choice.type === 'any' ? 'required' : choice.type, ...parallel };
}

function formatOf({ schema }: { readonly schema: Record<string, unknown> }): NonNullable<ChatBody['response_format']> {
  return { type: 'json_schema', json_schema: { name: 'output', schema } };
}
