// The tokenizer files of a Hugging Face directory, unread but for the chat template.
import { join } from 'node:path';
import { z } from 'zod';
import type { TokenizerSource } from '../types.ts';
import { readOptionalJson, readOptionalText, validate } from './json-file.ts';

const tokenizerBytesMax = 1 << 28;
const configBytesMax = 1 << 26;
const templateBytesMax = 1 << 24;

const templateSchema = z.object({
  chat_template: z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).nullish(),
});

/** undefined when the directory has no tokenizer.json. */
export function huggingFaceTokenizer(path: string): TokenizerSource | undefined {
  const tokenizerJson = readOptionalText(join(path, 'tokenizer.json'), tokenizerBytesMax);
  if (tokenizerJson === undefined) return undefined;
  const tokenizerConfig = readOptionalJson(join(path, 'tokenizer_config.json'), configBytesMax);
  const specialTokensMap = readOptionalJson(join(path, 'special_tokens_map.json'), configBytesMax);
  const chatTemplate =
    readOptionalText(join(path, 'chat_template.jinja'), templateBytesMax) ?? templateOf(path, tokenizerConfig);
  return {
    kind: 'huggingface',
    tokenizerJson,
    ...(tokenizerConfig === undefined ? {} : { tokenizerConfig }),
    ...(specialTokensMap === undefined ? {} : { specialTokensMap }),
    ...(chatTemplate === undefined ? {} : { chatTemplate }),
  };
}

/** Some configurations name several templates: the one called default is meant for chat. */
function templateOf(path: string, tokenizerConfig: unknown): string | undefined {
  if (tokenizerConfig === undefined) return undefined;
  const template = validate(join(path, 'tokenizer_config.json'), templateSchema, tokenizerConfig).chat_template;
  if (typeof template !== 'object' || template === null) return template ?? undefined;
  return template.find(({ name }) => name === 'default')?.template;
}
