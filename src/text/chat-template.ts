// Renders a conversation with the model's own Jinja template.

import { Template } from '@huggingface/jinja';
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

/** A compiled chat template; rendering does not change it. */
export class ChatTemplate {
  readonly source: string;
  readonly #template: Template;

  /** Throws ChatTemplateError where the model has no template or its template is broken. */
  constructor(source: string | undefined) {
    if (source === undefined || source === '') {
      throw new ChatTemplateError('Cannot render chat: model has no chat template: use /v1/completions, or a model made for chat');
    }
    this.source = source;
    try {
      this.#template = new Template(source);
    } catch (error) {
      throw new ChatTemplateError(`Cannot render chat: the model's chat template does not parse: ${messageOf(error)}`);
    }
  }

  /** The prompt text. It holds the model's special tokens, so encode it with `addSpecial: false`. Throws ChatTemplateError. */
  render(input: ChatInput): string {
    const variables = this.#variables(input);
    try {
      return this.#template.render(variables);
    } catch (error) {
      if (error instanceof ChatTemplateError) throw error;
      throw new ChatTemplateError(`Cannot render chat: the model's chat template failed: ${messageOf(error)}`);
    }
  }

  #variables(input: ChatInput): Record<string, unknown> {
    const { nowMs } = input;
    const knowsDeveloper = this.source.includes('developer');
    return {
      tools: null,
      documents: null,
      ...input.variables,
      messages: input.messages.map((message, index) => plainMessage(message, index, knowsDeveloper)),
      add_generation_prompt: input.addGenerationPrompt ?? true,
      bos_token: input.bosToken ?? '',
      eos_token: input.eosToken ?? '',
      raise_exception: (reason: unknown) => {
        throw new ChatTemplateError(`Cannot render chat: the model's chat template refuses it: ${String(reason)}`);
      },
      // Undefined hides the library's own, which reads the clock.
      strftime_now: nowMs === undefined ? undefined : (format: string) => formatTime(nowMs, format),
    };
  }
}

/** Renders with a template compiled just for this call. */
export function renderChat(template: string | undefined, input: ChatInput): string {
  return new ChatTemplate(template).render(input);
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

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

/** Where a model directory or file may keep its chat template. */
export interface ChatTemplateSources {
  /** Text of `chat_template.jinja`. */
  readonly jinjaFile?: string | undefined;
  /** `chat_template` of tokenizer_config.json: a template, or a list of named ones. */
  readonly tokenizerConfig?: unknown;
  /** `tokenizer.chat_template` of a GGUF file. */
  readonly gguf?: string | undefined;
}

/** The template to use: the file of its own before the configuration; of several named ones that called `default`. */
export function findChatTemplate(sources: ChatTemplateSources): string | undefined {
  const { jinjaFile, tokenizerConfig, gguf } = sources;
  if (jinjaFile !== undefined) return jinjaFile;
  if (typeof tokenizerConfig === 'string') return tokenizerConfig;
  if (Array.isArray(tokenizerConfig)) {
    const named: readonly unknown[] = tokenizerConfig;
    const byDefault = named.filter(isNamedTemplate).find(({ name }) => name === 'default');
    if (byDefault !== undefined) return byDefault.template;
  }
  return gguf;
}

function isNamedTemplate(value: unknown): value is { name: string; template: string } {
  if (typeof value !== 'object' || value === null) return false;
  return 'name' in value && 'template' in value && typeof value.template === 'string';
}
