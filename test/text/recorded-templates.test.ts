// Chat templates against the texts that jinja2 renders, in the environment of Hugging Face's transformers
// (tools/record-text/templates.py).

import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, test } from 'vitest';
import { type ChatMessage, ChatTemplate } from '../../src/text/template/chat-template.ts';

interface Recorded {
  readonly conversations: Readonly<Record<string, readonly ChatMessage[]>>;
  readonly variables: readonly Readonly<Record<string, unknown>>[];
  readonly templates: readonly {
    readonly name: string;
    readonly source: string;
    /** Conversation, index of the variables, and the text or the error of the template. */
    readonly renders: readonly (readonly [string, number, string | { readonly error: string }])[];
  }[];
}

const path = process.env.KVASIR_RECORDED_TEMPLATES ?? resolve(import.meta.dirname, '../data/templates.json');
const { conversations, variables, templates }: Recorded = JSON.parse(readFileSync(path, 'utf8'));
const nowMs = Date.UTC(2024, 10, 30, 12, 5, 9);

test.each(templates.map((template) => [template.name, template] as const))('%s', (_, { source, renders }) => {
  const template = new ChatTemplate(source);
  expect(template.problem).toBeUndefined();
  for (const [conversation, index, expected] of renders) {
    const { add_generation_prompt: addGenerationPrompt = true, ...more } = variables[index] ?? {};
    const render = (): string =>
      template.render({
        messages: conversations[conversation] ?? [],
        addGenerationPrompt: addGenerationPrompt === true,
        bosToken: '<s>',
        eosToken: '</s>',
        nowMs,
        variables: more,
      });
    if (typeof expected === 'string') expect(render(), `${conversation} ${index}`).toBe(expected);
    else expect(render, `${conversation} ${index}`).toThrow(expected.error);
  }
});
