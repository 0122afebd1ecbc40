// Renders a conversation with the model's own Jinja template.

import { Environment, parse, tokenize } from '@huggingface/jinja';
import { oneLine } from '../../util/one-line.ts';
import { BoundedInterpreter, listItemsMax } from './bounded-interpreter.ts';
import { prepareSource } from './jinja-source.ts';
import { formatTime } from './strftime.ts';

export interface TextPart {
  readonly type: 'text';
  readonly text: string;
}

export interface ChatMessage {
  /** system, developer, user, assistant, or any other role of the template. */
  readonly role: string;
  /**
   * Parts are joined by newlines, because most templates accept only strings. Null is empty, or null beside
   * `tool_calls`.
   */
  readonly content: string | readonly TextPart[] | null | undefined;
  readonly name?: string | undefined;
  /** Calls of an assistant message. */
  readonly tool_calls?: readonly unknown[];
  /** The call that a tool's message answers. */
  readonly tool_call_id?: string;
}

export interface ChatInput {
  readonly messages: readonly ChatMessage[];
  /** Tools as the template expects them: objects of type `function`. Undefined: none. */
  readonly tools?: readonly object[] | undefined;
  /** Append the start of the assistant's answer. Default true. */
  readonly addGenerationPrompt?: boolean;
  readonly bosToken?: string | undefined;
  readonly eosToken?: string | undefined;
  /**
   * The time for `strftime_now`, in milliseconds since 1970 UTC; undefined: the template has no clock and uses its own
   * date.
   */
  readonly nowMs?: number | undefined;
  /** Additional template variables, for example `enable_thinking`. */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** A conversation that cannot be rendered; the message is safe to send to the client. */
export class ChatTemplateError extends Error {}

/** A model's chat template; rendering does not change it. */
export class ChatTemplate {
  readonly source: string;
  /** The parse error of an unusable template. The model can still serve completions. */
  readonly problem: string | undefined;
  readonly #program: ReturnType<typeof parse> | undefined;

  constructor(source: string) {
    this.source = source;
    try {
      checkSource(source);
      this.#program = parse(tokenize(prepareSource(source)));
    } catch (error) {
      this.problem = `the model's chat template does not parse: ${messageOf(error)}`;
    }
  }

  /**
   * The prompt text. It contains the model's special tokens, so encode it with `addSpecial: false`.
   * @throws ChatTemplateError
   */
  render(input: ChatInput): string {
    if (this.#program === undefined) throw new ChatTemplateError(`Cannot render chat: ${this.problem}`);
    // The library's default globals read the clock and cannot be changed.
    const environment = new Environment();
    for (const [name, value] of Object.entries(this.#variables(input))) environment.set(name, value);
    try {
      return new BoundedInterpreter(environment, this.source.length + charactersOf(input)).run(this.#program)
        .value as string;
    } catch (error) {
      if (error instanceof ChatTemplateError) throw error;
      throw new ChatTemplateError(`Cannot render chat: the model's chat template failed: ${messageOf(error)}`);
    }
  }

  #variables(input: ChatInput): Record<string, unknown> {
    const { nowMs } = input;
    const hasDeveloperRole = this.source.includes('developer');
    return {
      ...jinjaConstants,
      documents: null,
      ...input.variables,
      tools: input.tools ?? input.variables?.tools ?? null,
      messages: input.messages.map((message, index) => plainMessage(message, index, hasDeveloperRole)),
      add_generation_prompt: input.addGenerationPrompt ?? true,
      bos_token: input.bosToken ?? '',
      eos_token: input.eosToken ?? '',
      raise_exception: (reason: unknown) => {
        throw new ChatTemplateError(
          `Cannot render chat: the model's chat template refuses it: ${oneLine(String(reason), reasonCharactersMax)}`,
        );
      },
      ...(nowMs === undefined ? {} : { strftime_now: (format: string) => formatTime(nowMs, format) }),
    };
  }
}

/** `template.render`, or an error when the model has no template. */
export function renderChat(template: ChatTemplate | undefined, input: ChatInput): string {
  if (template !== undefined) return template.render(input);
  throw new ChatTemplateError(
    'Cannot render chat: model has no chat template: use /v1/completions, or a model made for chat',
  );
}

function plainMessage(message: ChatMessage, index: number, hasDeveloperRole: boolean): Record<string, unknown> {
  const role = message.role === 'developer' && !hasDeveloperRole ? 'system' : message.role;
  const isNull = message.content === null && message.tool_calls !== undefined;
  return { ...message, role, content: isNull ? null : plainContent(message.content, index) };
}

function plainContent(content: ChatMessage['content'], index: number): string {
  if (content === undefined || content === null) return '';
  if (typeof content === 'string') return content;
  return content
    .map((part, at) => {
      if (part.type === 'text') return part.text;
      const type: string = part.type;
      throw new ChatTemplateError(`Cannot render chat: messages[${index}].content[${at}] is not text: type '${type}'`);
    })
    .join('\n');
}

const jinjaConstants = { true: true, True: true, false: false, False: false, none: null, None: null, range };

function range(first: number, second?: number, step = 1): number[] {
  const [start, stop] = second === undefined || second === null ? [0, first] : [first, second];
  const count = Math.max(0, Math.ceil((stop - start) / step));
  if (!(count <= listItemsMax)) throw new Error(`range() of ${count} items: at most ${listItemsMax}`);
  return Array.from({ length: count }, (_, i) => start + i * step);
}

const reasonCharactersMax = 300;
const sourceCharactersMax = 2 ** 18;
/** The library's parser takes quadratic time for runs of white space. */
const spacesMax = 1000;
const spaces = new RegExp(`\\s{${spacesMax + 1}}`);

/** @throws Error when the library's parser would take too long */
function checkSource(source: string): void {
  if (source.length > sourceCharactersMax)
    throw new Error(`it has ${source.length} characters, at most ${sourceCharactersMax} are read`);
  if (spaces.test(source)) throw new Error(`it has more than ${spacesMax} spaces in a row`);
}

const messageOf = (error: unknown) =>
  oneLine(error instanceof Error ? error.message : String(error), reasonCharactersMax);

/** Characters of the input; each message counts a little beyond its text. */
function charactersOf({ messages, tools = [] }: ChatInput): number {
  const characters = ({ content, tool_calls: calls }: ChatMessage, index: number): number =>
    plainContent(content, index).length + (calls === undefined ? 0 : JSON.stringify(calls).length);
  const inMessages = messages.reduce((sum, message, index) => sum + perMessage + characters(message, index), 0);
  return inMessages + JSON.stringify(tools).length;
}

const perMessage = 100;
