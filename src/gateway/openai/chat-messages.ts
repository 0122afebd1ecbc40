// The messages and tools of a chat request as its model's chat template expects them.

import { createHash } from 'node:crypto';
import type { ChatMessage, TextPart } from '../../text/template/chat-template.ts';
import { type CallFormat, namedId, type TemplateStyle, writeCalls } from '../../text/tools/call-format.ts';
import type { Tool, ToolChoice } from '../../text/tools/tool.ts';
import type { ChatBody } from './schema.ts';

type BodyMessage = ChatBody['messages'][number];

/** How the template of a request writes calls; undefined: no format is derived, and the messages pass as they are. */
export type TemplateCalls = { readonly format: CallFormat; readonly style: TemplateStyle } | undefined;

export function toolsOf({ tools = [] }: Pick<ChatBody, 'tools'>): Tool[] {
  return tools.map(({ function: { name, description, parameters, strict } }) => ({
    name,
    description: description ?? undefined,
    parameters: parameters ?? undefined,
    strict: strict ?? undefined,
  }));
}

export function toolChoiceOf({ tool_choice: choice = 'auto' }: Pick<ChatBody, 'tool_choice'>): ToolChoice {
  return typeof choice === 'string' ? choice : { name: choice.function.name };
}

/** True if a message has tool calls, or answers one. */
export const hasToolMessages = (messages: readonly BodyMessage[]): boolean =>
  messages.some(({ role, tool_calls: calls = [] }) => role === 'tool' || calls.length > 0);

/** Tools in the shape of OpenAI's, which templates write out. */
export function templateTools(tools: readonly Tool[]): object[] {
  return tools.map(({ name, description, parameters }) => ({
    type: 'function',
    function: {
      name,
      ...(description !== undefined && { description }),
      parameters: parameters ?? { type: 'object', properties: {} },
    },
  }));
}

/** @param tools those of the request; they are part of the system message where the template reads them there */
export function templateMessages(
  messages: readonly BodyMessage[],
  calls: TemplateCalls,
  tools: readonly Tool[],
): ChatMessage[] {
  const idOf = templateIds(messages, calls);
  const list = messages.map((message) => templateMessage(message, calls, idOf));
  if (calls?.style.tools !== 'system message' || tools.length === 0) return list;
  const text = JSON.stringify(templateTools(tools).map((tool) => (tool as { function: object }).function));
  const [first, ...rest] = list;
  if (first?.role === 'system') return [{ ...first, tools: text } as ChatMessage, ...rest];
  return [{ role: 'system', content: '', tools: text } as ChatMessage, ...list];
}

function templateMessage(message: BodyMessage, calls: TemplateCalls, idOf: (id: string) => string): ChatMessage {
  const { role, content, name, reasoning_content, tool_calls: made = [], tool_call_id } = message;
  const common = {
    role,
    ...(name !== undefined && { name }),
    ...(reasoning_content !== undefined && { reasoning_content }),
    ...(tool_call_id !== undefined && { tool_call_id: idOf(tool_call_id) }),
  };
  if (made.length === 0) return { ...common, content };
  if (calls?.style.callsInContent === true) {
    const written = made.map(({ function: { name, arguments: args } }) => ({ name, arguments: args }));
    return { ...common, content: plainText(content) + writeCalls(calls.format, written) };
  }
  const isText = calls?.style.argumentsAs === 'text';
  const isEmpty = content === undefined || content.length === 0;
  return {
    ...common,
    content: isEmpty ? (calls?.style.emptyContent ?? '') : content,
    tool_calls: made.map(({ id, function: { name, arguments: args } }) => ({
      id: idOf(id),
      type: 'function',
      function: { name, arguments: isText ? args : argumentsObject(args) },
    })),
  };
}

const plainText = (content: string | readonly TextPart[] | undefined): string =>
  typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('\n');

/** Arguments of an earlier call; malformed ones stay text. */
function argumentsObject(text: string): unknown {
  if (text.trim() === '') return {};
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : text;
  } catch {
    return text;
  }
}

const shortId = /^[a-zA-Z0-9]{9}$/;

/** The ids of calls in the template: those of other servers become what it requires. */
function templateIds(messages: readonly BodyMessage[], calls: TemplateCalls): (id: string) => string {
  const ids = calls?.style.ids;
  if (ids === 'short') return (id) => (shortId.test(id) ? id : shortDigest(id));
  if (ids !== 'named') return (id) => id;
  const made = messages.flatMap(({ tool_calls: list = [] }) => list);
  const named = new Map(made.map(({ id, function: { name } }, index) => [id, namedId(name, index)]));
  return (id) => named.get(id) ?? id;
}

function shortDigest(id: string): string {
  const digest = createHash('sha256').update(id).digest('base64');
  return digest.replace(/[^a-zA-Z0-9]/g, '').slice(0, 9);
}
