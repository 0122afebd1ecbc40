// Conversations with which a chat template shows how it writes calls and reasoning.

import type { ChatMessage, ChatTemplate } from '../template/chat-template.ts';
import { namedId, type TemplateStyle } from './call-format.ts';

/** Words that no template has. */
export const probeNames = ['zqalpha', 'zqbravo'] as const;
export const probeKeys = ['zqkilo', 'zqlima'] as const;
export const probeValues = ['zqvictor', 'zqwhisky'] as const;
export const probeAnswer = 'zqanswer';
export const probeReasoning = 'zqreasoning';
export const probeQuestion = 'zqquestion';

export interface ProbeCall {
  readonly name: string;
  readonly arguments: Readonly<Record<string, unknown>>;
}

/** Texts that depend on the model. */
export interface ProbeTokens {
  readonly bosToken: string | undefined;
  readonly eosToken: string | undefined;
}

/** Tools as chat templates expect them. */
export const probeTools = probeNames.map((name) => ({
  type: 'function',
  function: {
    name,
    description: 'zqdescription',
    parameters: {
      type: 'object',
      properties: Object.fromEntries(probeKeys.map((key) => [key, { type: 'string', description: 'zqdescription' }])),
      required: [],
    },
  },
}));

/** The id of call `index`. */
export function probeId(name: string, index: number, { ids }: Pick<TemplateStyle, 'ids'>): string {
  if (ids === 'named') return namedId(name, index);
  return ids === 'short' ? `zqcall00${index}` : `call_zq0000000000000000000${index}`;
}

export class Probe {
  readonly #template: ChatTemplate;
  readonly #tokens: ProbeTokens;

  constructor(template: ChatTemplate, tokens: ProbeTokens) {
    this.#template = template;
    this.#tokens = tokens;
  }

  get source(): string {
    return this.#template.source;
  }

  /** The conversation with an answer of the assistant; undefined if the template refuses it. */
  answer(members: Readonly<Record<string, unknown>>, hasTools: boolean): string | undefined {
    const content = { role: 'assistant', content: '', ...members } as ChatMessage;
    return this.render([{ role: 'user', content: probeQuestion }, content], hasTools, false);
  }

  /** The conversation with calls of the assistant. */
  calls(calls: readonly ProbeCall[], style: TemplateStyle): string | undefined {
    const list = calls.map(({ name, arguments: args }, index) => ({
      id: probeId(name, index, style),
      type: 'function',
      function: { name, arguments: style.argumentsAs === 'object' ? args : JSON.stringify(args) },
    }));
    return this.answer({ content: style.emptyContent, tool_calls: list }, true);
  }

  /** The prompt of the question. */
  prompt(hasTools: boolean, variables: Readonly<Record<string, unknown>> = {}): string | undefined {
    return this.render([{ role: 'user', content: probeQuestion }], hasTools, true, variables);
  }

  render(
    messages: readonly ChatMessage[],
    hasTools: boolean,
    addGenerationPrompt: boolean,
    variables: Readonly<Record<string, unknown>> = {},
  ): string | undefined {
    try {
      return this.#template.render({
        messages,
        addGenerationPrompt,
        ...this.#tokens,
        nowMs: 0,
        variables,
        ...(hasTools && { tools: probeTools }),
      });
    } catch {
      return undefined;
    }
  }
}
