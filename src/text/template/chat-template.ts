// Renders a conversation with the model's own Jinja template.

import { Environment, Template } from '@huggingface/jinja';
import { oneLine } from '../../util/one-line.ts';
import { BoundedInterpreter, listItemsMax } from './bounded-interpreter.ts';
import { formatTime } from './strftime.ts';

export interface TextPart {
  readonly type: 'text';
  readonly text: string;
}

export interface ChatMessage {
  /** system, developer, user, assistant, or another that the template knows. */
  readonly role: string;
  /** Parts are joined by newlines, because most templates take strings only. */
  readonly content: string | readonly TextPart[] | null | undefined;
  readonly name?: string | undefined;
}

export interface ChatInput {
  readonly messages: readonly ChatMessage[];
  /** Begin the assistant's answer. Default true. */
  readonly addGenerationPrompt?: boolean;
  readonly bosToken?: string | undefined;
  readonly eosToken?: string | undefined;
  /** What `strftime_now` formats, in milliseconds since 1970 UTC; undefined: the template sees no clock and uses its own date. */
  readonly nowMs?: number | undefined;
  /** Further variables of the template, `enable_thinking` for example. */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** A conversation that cannot be rendered, with a message fit for the client. */
export class ChatTemplateError extends Error {}

/** A model's chat template; rendering does not change it. */
export class ChatTemplate {
  readonly source: string;
  /** Why the template cannot be used, where it does not parse. The model serves completions all the same. */
  readonly problem: string | undefined;
  readonly #program: Template['parsed'] | undefined;

  constructor(source: string) {
    this.source = source;
    try {
      checkSource(source);
      this.#program = new Template(source).parsed;
    } catch (error) {
      this.problem = `the model's chat template does not parse: ${messageOf(error)}`;
    }
  }

  /** The prompt text. It holds the model's special tokens, so encode it with `addSpecial: false`. Throws ChatTemplateError. */
  render(input: ChatInput): string {
    if (this.#program === undefined) throw new ChatTemplateError(`Cannot render chat: ${this.problem}`);
    // The library's own set of globals reads the clock and cannot be changed.
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
    const knowsDeveloper = this.source.includes('developer');
    return {
      ...jinjaConstants,
      tools: null,
      documents: null,
      ...input.variables,
      messages: input.messages.map((message, index) => plainMessage(message, index, knowsDeveloper)),
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

/** As `template.render`, with the error that a model without a template deserves. */
export function renderChat(template: ChatTemplate | undefined, input: ChatInput): string {
  if (template !== undefined) return template.render(input);
  throw new ChatTemplateError(
    'Cannot render chat: model has no chat template: use /v1/completions, or a model made for chat',
  );
}

function plainMessage(message: ChatMessage, index: number, knowsDeveloper: boolean): Record<string, unknown> {
  const role = message.role === 'developer' && !knowsDeveloper ? 'system' : message.role;
  return { ...message, role, content: plainContent(message.content, index) };
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
/** The library looks for the end of white space from each of its characters. */
const spacesMax = 1000;
const spaces = new RegExp(`\\s{${spacesMax + 1}}`);

/** @throws Error for what would take the library's parser long */
function checkSource(source: string): void {
  if (source.length > sourceCharactersMax)
    throw new Error(`it has ${source.length} characters, at most ${sourceCharactersMax} are read`);
  if (spaces.test(source)) throw new Error(`it has more than ${spacesMax} spaces in a row`);
}

const messageOf = (error: unknown) =>
  oneLine(error instanceof Error ? error.message : String(error), reasonCharactersMax);

/** What the conversation gives the template to work on; each message counts beyond its text. */
function charactersOf({ messages }: ChatInput): number {
  return messages.reduce((sum, message, index) => sum + perMessage + plainContent(message.content, index).length, 0);
}

const perMessage = 100;
