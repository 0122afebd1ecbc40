// The text side of a model: its tokenizer and chat template, from either file format.

import { ChatTemplate } from './template/chat-template.ts';
import type { Tokenizer } from './tokenizer.ts';
import { decodeUtf8 } from './utf8.ts';
import { createGgufTokenizer } from './vocabulary/gguf-tokenizer.ts';
import type { GgufTokenizerData } from './vocabulary/gguf-tokenizer-data.ts';
import { createHuggingFaceTokenizer } from './vocabulary/hugging-face-tokenizer.ts';

interface Templates {
  /** The model's template for chat. */
  readonly chatTemplate?: string;
  /** Its template for chat with tools, if it is another. */
  readonly toolTemplate?: string;
}

/** Text data of a model's files, read but not interpreted. */
export type TextSource =
  | { readonly kind: 'gguf'; readonly data: GgufTokenizerData & Templates }
  | ({
      readonly kind: 'huggingface';
      /** Text of tokenizer.json. */
      readonly tokenizerJson: string;
      /** Parsed tokenizer_config.json and special_tokens_map.json. */
      readonly tokenizerConfig?: unknown;
      readonly specialTokensMap?: unknown;
    } & Templates);

export interface ModelText {
  readonly tokenizer: Tokenizer;
  readonly chatTemplate: ChatTemplate | undefined;
  /** The template of chats with tools, if it is another. */
  readonly toolTemplate: ChatTemplate | undefined;
  /** Begin and end tokens as the template spells them. */
  readonly bosToken: string | undefined;
  readonly eosToken: string | undefined;
}

/** @throws Error `Cannot build tokenizer: ...` for an unusable vocabulary */
export function createModelText(source: TextSource): ModelText {
  const tokenizer = source.kind === 'gguf' ? createGgufTokenizer(source.data) : readTokenizerJson(source);
  const { chatTemplate, toolTemplate } = source.kind === 'gguf' ? source.data : source;
  const parsed = (template: string | undefined) => (template === undefined ? undefined : new ChatTemplate(template));
  const spell = (id: number | undefined) => (id === undefined ? undefined : decodeUtf8(tokenizer.tokenBytes(id)));
  return {
    tokenizer,
    chatTemplate: parsed(chatTemplate),
    toolTemplate: parsed(toolTemplate),
    bosToken: spell(tokenizer.bosId),
    eosToken: spell(tokenizer.eosIds[0]),
  };
}

type HuggingFaceSource = Extract<TextSource, { kind: 'huggingface' }>;

function readTokenizerJson({ tokenizerJson, tokenizerConfig, specialTokensMap }: HuggingFaceSource): Tokenizer {
  let tokenizer: unknown;
  try {
    tokenizer = JSON.parse(tokenizerJson);
  } catch (error) {
    throw new Error(
      `Cannot build tokenizer: tokenizer.json is not JSON: ${error instanceof Error ? error.message : ''}`,
    );
  }
  return createHuggingFaceTokenizer({ tokenizer, config: tokenizerConfig, specialTokensMap });
}
