// Messages and tools as users of the library write them, and their form in the gateway's core.
import type { ChatBody } from '../gateway/openai/schema.ts';
import { type Infer, jsonSchemaOf, type Schema } from './schema.ts';

/** A message of a conversation. */
export type Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage;

/** Instructions to the model. */
export interface SystemMessage {
  readonly role: 'system' | 'developer';
  readonly content: string;
}

/** A turn of the user. */
export interface UserMessage {
  readonly role: 'user';
  readonly content: string;
}

/** An answer of the model. */
export interface AssistantMessage {
  readonly role: 'assistant';
  readonly content?: string;
  /** Templates of reasoning models decide whether earlier reasoning is part of the prompt. */
  readonly reasoning?: string;
  readonly toolCalls?: readonly PastToolCall[];
}

/** A call of an earlier answer. */
export interface PastToolCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: unknown;
}

/** The result of a tool call. */
export interface ToolMessage {
  readonly role: 'tool';
  readonly toolCallId: string;
  readonly content: string;
}

/** What `execute` of a tool may use. */
export interface ToolContext {
  readonly toolCallId: string;
  /** Aborted with the request. */
  readonly signal: AbortSignal;
}

/** A function that the model may call. */
export interface Tool<P extends Schema = Schema> {
  readonly description?: string;
  readonly parameters: P;
  /** Constrains the arguments to the schema while they are generated. A schema that a grammar cannot express is then an error. */
  readonly strict?: boolean;
  /**
   * Its result goes back to the model, which then continues; anything but text as JSON. A thrown error goes back as text.
   * Without this function, the call ends the answer, and its result belongs into the next request.
   */
  execute?(args: Infer<P>, context: ToolContext): unknown;
}

/** Tools by name. */
export type ToolSet = Readonly<Record<string, Tool>>;

/** No tools. */
export type NoTools = Readonly<Record<never, never>>;

/** Types the arguments of `execute` by the schema of `parameters`. */
export function tool<const P extends Schema>(definition: Tool<P>): Tool<P> {
  return definition;
}

type ToolName<T> = keyof T & string;
type ArgumentsOf<T> = T extends { readonly parameters: infer P } ? Infer<P> : never;

/** A call that the model made, one type for each tool. */
export type ToolCall<T = ToolSet> = {
  [N in ToolName<T>]: {
    readonly id: string;
    readonly name: N;
    /** Validated, unless `problem` is there. */
    readonly arguments: ArgumentsOf<T[N]>;
    /** The arguments as the model wrote them. */
    readonly text: string;
    /** Why the arguments do not match the schema of the tool. */
    readonly problem?: string;
  };
}[ToolName<T>];

/** Which call the answer has: any or none, none, at least one, or one of this tool. */
export type ToolChoice<T = ToolSet> = 'auto' | 'none' | 'required' | { readonly tool: ToolName<T> };

type BodyMessage = ChatBody['messages'][number];

/** @param messages text is one message of the user */
export function messageList(messages: string | readonly Message[]): readonly Message[] {
  return typeof messages === 'string' ? [{ role: 'user', content: messages }] : messages;
}

export function bodyMessage(message: Message): BodyMessage {
  if (message.role === 'tool') {
    const { role, content, toolCallId } = message;
    return { role, content, tool_call_id: toolCallId };
  }
  if (message.role !== 'assistant') return { role: message.role, content: message.content };
  const { role, content, reasoning, toolCalls = [] } = message;
  return {
    role,
    ...((content !== undefined || toolCalls.length === 0) && { content: content ?? '' }),
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(toolCalls.length > 0 && {
      tool_calls: toolCalls.map(({ id, name, arguments: args }) => ({
        id,
        type: 'function' as const,
        function: { name, arguments: typeof args === 'string' ? args : JSON.stringify(args ?? {}) },
      })),
    }),
  };
}

export function bodyTools(tools: ToolSet): object[] {
  return Object.entries(tools).map(([name, { description, parameters, strict }]) => ({
    type: 'function',
    function: { name, description, parameters: jsonSchemaOf(parameters), strict },
  }));
}

export function bodyToolChoice(choice: ToolChoice<ToolSet>): object | string {
  return typeof choice === 'string' ? choice : { type: 'function', function: { name: choice.tool } };
}
