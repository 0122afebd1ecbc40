// A chat: rounds of answers and tool calls until the model answers without a call that this process executes.
import { AnswerParts } from '../gateway/openai/answer-parts.ts';
import { planChat } from '../gateway/openai/chat.ts';
import { parseBody } from '../gateway/openai/fields.ts';
import type { FinishReason as CoreReason, Usage as CoreUsage } from '../gateway/openai/run-choices.ts';
import { chatSchema } from '../gateway/openai/schema.ts';
import type { Engine, Usage } from './engine.ts';
import { OutputError } from './errors.ts';
import {
  type AssistantMessage,
  bodyMessage,
  bodyToolChoice,
  bodyTools,
  type Message,
  type NoTools,
  type ToolCall,
  type ToolChoice,
  type ToolMessage,
  type ToolSet,
} from './messages.ts';
import { Run, type RunSink } from './run.ts';
import { bodySampling, type SamplingOptions } from './sampling.ts';
import { type Infer, jsonSchemaOf, parseOutput, type Schema } from './schema.ts';

/** Options of a chat. */
export interface ChatOptions<S extends Schema | undefined = undefined, T = NoTools> extends SamplingOptions {
  /** Tools that the model may call. Those with `execute` run in this process, and the model continues with their results. */
  readonly tools?: T;
  readonly toolChoice?: ToolChoice<T>;
  /** False: at most one call in an answer. */
  readonly parallelToolCalls?: boolean;
  /** Rounds of tool calls that are executed; the calls of the next round end the answer. Default 8. */
  readonly toolRoundsMax?: number;
  /** Constrains the answer to JSON of this schema, and types `object` of the result. */
  readonly schema?: S;
  /** Constrains the answer like `schema`, and leaves its text to the caller: it is neither parsed nor checked. */
  readonly outputSchema?: Schema | undefined;
  /** For templates that know it, for example `low` or `none`. */
  readonly reasoningEffort?: string;
  /** Further variables of the chat template, for example `{ enable_thinking: false }`. */
  readonly templateVariables?: Readonly<Record<string, unknown>>;
}

/** Why an answer ended: the model ended it, the token limit cut it, or it waits for results of tool calls. */
export type FinishReason = 'stop' | 'length' | 'tool-calls';

/** The value of the schema; undefined without a schema, and for an answer that ends in tool calls. */
export type OutputOf<S, T> = S extends Schema
  ? [keyof T] extends [never]
    ? Infer<S>
    : Infer<S> | undefined
  : undefined;

/** A finished chat. */
export interface ChatResult<S extends Schema | undefined = undefined, T = NoTools> {
  /** Of the last answer. */
  readonly text: string;
  /** Of the last answer. */
  readonly reasoning: string;
  readonly object: OutputOf<S, T>;
  /** Calls of the last answer, which were not executed. */
  readonly toolCalls: readonly ToolCall<T>[];
  readonly finishReason: FinishReason;
  /** Of all rounds. */
  readonly usage: Usage;
  /** What the chat adds to its conversation: answers and results of tools. */
  readonly messages: readonly Message[];
}

/** A piece of a running chat. */
export type ChatDelta<T = NoTools> =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** A whole call. */
  | { readonly type: 'tool-call'; readonly call: ToolCall<T> }
  /** The result of an executed call, as the model reads it. */
  | { readonly type: 'tool-result'; readonly id: string; readonly name: string; readonly text: string };

/** A running chat. */
export type ChatRun<S extends Schema | undefined = undefined, T = NoTools> = Run<ChatDelta<T>, ChatResult<S, T>>;

/** Tools and calls whose types are not known. */
type AnyCall = ToolCall<ToolSet>;
type AnyDelta = ChatDelta<ToolSet>;

const toolRoundsDefault = 8;

/** Starts a chat. */
export function startChat<S extends Schema | undefined, T>(
  engine: Engine,
  messages: readonly Message[],
  options: ChatOptions<S, T>,
): ChatRun<S, T> {
  const untyped = options as unknown as ChatOptions<S, ToolSet>;
  const run = new Run<AnyDelta, ChatResult<S, ToolSet>>(
    (sink) => engine.work(() => new Chat(engine, messages, untyped, sink).run(), sink.signal),
    mergeText,
    [options.signal, engine.closing],
  );
  return run as unknown as ChatRun<S, T>;
}

export function mergeText<D extends { readonly type: string }>(earlier: D, later: D): D | undefined {
  if (earlier.type !== later.type || !('text' in earlier) || !('text' in later) || 'id' in earlier) return undefined;
  return { ...earlier, text: `${earlier.text}${later.text}` };
}

interface Answer {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly AnyCall[];
  readonly reason: CoreReason;
}

class Chat<S extends Schema | undefined> {
  readonly #engine: Engine;
  readonly #messages: readonly Message[];
  readonly #options: ChatOptions<S, ToolSet>;
  readonly #sink: RunSink<AnyDelta>;
  readonly #added: Message[] = [];
  readonly #usage = { promptTokens: 0, cachedTokens: 0, outputTokens: 0, reasoningTokens: 0 };

  constructor(engine: Engine, messages: readonly Message[], options: ChatOptions<S, ToolSet>, sink: RunSink<AnyDelta>) {
    this.#engine = engine;
    this.#messages = messages;
    this.#options = options;
    this.#sink = sink;
  }

  async run(): Promise<ChatResult<S, ToolSet>> {
    const { toolRoundsMax = toolRoundsDefault } = this.#options;
    for (let round = 0; ; round++) {
      const answer = await this.#answer(round);
      this.#added.push(assistantMessage(answer));
      const isWhole = answer.calls.length > 0 && answer.reason !== 'length';
      if (!isWhole || round >= toolRoundsMax || !this.#executes(answer.calls)) return this.#result(answer);
      this.#added.push(...(await Promise.all(answer.calls.map((call) => this.#execute(call)))));
      this.#sink.signal.throwIfAborted();
    }
  }

  /** True if all calls of an answer have functions here: a caller of the others needs all of them. */
  #executes(calls: readonly AnyCall[]): boolean {
    return calls.every(({ name }) => this.#tool(name) === undefined || this.#tool(name)?.execute !== undefined);
  }

  #tool(name: string): ToolSet[string] | undefined {
    const { tools = {} } = this.#options;
    return Object.hasOwn(tools, name) ? tools[name] : undefined;
  }

  async #execute({ id, name, arguments: args, problem }: AnyCall): Promise<ToolMessage> {
    const text = problem ?? (await this.#called(id, name, args));
    this.#sink.delta({ type: 'tool-result', id, name, text });
    return { role: 'tool', toolCallId: id, content: text };
  }

  async #called(toolCallId: string, name: string, args: unknown): Promise<string> {
    try {
      const result = await this.#tool(name)?.execute?.(args, { toolCallId, signal: this.#sink.signal });
      return typeof result === 'string' ? result : (JSON.stringify(result) ?? 'null');
    } catch (error) {
      return `Error: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  async #answer(round: number): Promise<Answer> {
    const { context } = this.#engine;
    const call = this.#engine.newCall();
    const { choices } = await planChat(parseBody(chatSchema, this.#body(round)), context, call);
    const parts = new AnswerParts({
      opened: () => {},
      grew: ({ kind }, _, text) => {
        if (kind !== 'call') this.#sink.delta({ type: kind, text });
      },
      closed: () => {},
    });
    let reason: CoreReason = 'stop';
    const usage = await this.#engine.run(
      choices,
      {
        promptLogprobs: () => {},
        delta: (_, delta) => parts.append(delta),
        finished: (_, why) => {
          reason = why;
          parts.end();
        },
      },
      this.#sink,
    );
    this.#count(usage);
    const textOf = (kind: 'text' | 'reasoning'): string =>
      parts.parts.map((part) => (part.kind === kind ? part.text : '')).join('');
    const calls: AnyCall[] = [];
    for (const part of parts.parts) {
      if (part.kind !== 'call') continue;
      calls.push(await this.#typed(part.id, part.name, part.text));
    }
    for (const made of calls) this.#sink.delta({ type: 'tool-call', call: made });
    return { text: textOf('text'), reasoning: textOf('reasoning'), calls, reason };
  }

  async #typed(id: string, name: string, text: string): Promise<AnyCall> {
    const tool = this.#tool(name);
    const call = { id, name, text };
    if (tool === undefined) return { ...call, arguments: undefined, problem: `Error: there is no tool '${name}'` };
    try {
      return { ...call, arguments: await parseOutput(tool.parameters, text.trim() === '' ? '{}' : text) };
    } catch (error) {
      if (!(error instanceof OutputError)) throw error;
      const why = error.message.replace(/^Cannot [a-z]+ output: /, '');
      return { ...call, arguments: undefined, problem: `Error: the arguments of '${name}' are invalid: ${why}` };
    }
  }

  #count({ promptTokens, cachedTokens, completionTokens, reasoningTokens }: CoreUsage): void {
    this.#usage.promptTokens += promptTokens;
    this.#usage.cachedTokens += cachedTokens;
    this.#usage.outputTokens += completionTokens;
    this.#usage.reasoningTokens += reasoningTokens;
  }

  /** A required call is required in the first round alone: the model then answers from the results. */
  #body(round: number): object {
    const { tools, toolChoice, parallelToolCalls, reasoningEffort, templateVariables } = this.#options;
    const schema = this.#options.schema ?? this.#options.outputSchema;
    const choice = round > 0 && toolChoice !== 'none' ? undefined : toolChoice;
    return {
      ...bodySampling(this.#options),
      model: this.#engine.context.model.id,
      messages: [...this.#messages, ...this.#added].map(bodyMessage),
      tools: tools && bodyTools(tools),
      tool_choice: choice && bodyToolChoice(choice),
      parallel_tool_calls: parallelToolCalls,
      response_format: schema && {
        type: 'json_schema',
        json_schema: { name: 'output', schema: jsonSchemaOf(schema), strict: true },
      },
      reasoning_effort: reasoningEffort,
      chat_template_kwargs: templateVariables,
    };
  }

  async #result({ text, reasoning, calls, reason }: Answer): Promise<ChatResult<S, ToolSet>> {
    const { schema } = this.#options;
    const hasOutput = schema !== undefined && calls.length === 0;
    if (hasOutput && reason === 'length')
      throw new OutputError('incomplete_output', 'Cannot read output: the token limit cut it', text);
    return {
      text,
      reasoning,
      object: (hasOutput ? await parseOutput(schema, text) : undefined) as OutputOf<S, ToolSet>,
      toolCalls: calls,
      finishReason: finishReason(reason),
      usage: this.#usage,
      messages: this.#added,
    };
  }
}

export function finishReason(reason: CoreReason): FinishReason {
  return reason === 'tool_calls' ? 'tool-calls' : reason;
}

function assistantMessage({ text, reasoning, calls }: Answer): AssistantMessage {
  return {
    role: 'assistant',
    content: text,
    ...(reasoning !== '' && { reasoning }),
    ...(calls.length > 0 && {
      toolCalls: calls.map(({ id, name, arguments: args, text: written }) => ({
        id,
        name,
        arguments: args ?? written,
      })),
    }),
  };
}
