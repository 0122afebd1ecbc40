// The served model: its name, tokenizer, template and limits.
import type { Pooling } from '../../core/protocol/ports.ts';
import type { ChatTemplate } from '../../text/template/chat-template.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';

export interface SamplingDefaults {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
}

/** How the model turns texts into vectors. */
export interface EmbeddingSupport {
  /** Where a request names none. */
  readonly pooling: Pooling;
  readonly poolings: readonly Pooling[];
  /** Elements of a vector. */
  readonly columns: number;
  /** Shorter vectors that the model states; `any`: all lengths. Undefined: none. */
  readonly matryoshka?: readonly number[] | 'any' | undefined;
}

/** A chat as engines render and tokenize it, in the fields of OpenAI's API. */
export interface EngineChat {
  readonly messages: readonly object[];
  readonly add_generation_prompt?: boolean | undefined;
  readonly continue_final_message?: boolean | undefined;
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>> | undefined;
}

/** External engines render, tokenize and decode. */
export interface EngineText {
  /** @param signal ends the call @throws ApiError */
  chat(chat: EngineChat, signal?: AbortSignal): Promise<Int32Array>;
}

export interface ServedModel {
  readonly id: string;
  readonly createdS: number;
  /** Maximum number of tokens of prompt plus output. */
  readonly contextTokens: number;
  /** Tokens that one instance holds without borrowing: the limit of requests without `max_tokens`. */
  readonly homeTokens?: number | undefined;
  /** Tokens that requests may keep in sparse layers (`kv_budget`), or `full`; undefined: every request keeps all. */
  readonly kvBudget?: { readonly least: number | undefined; readonly most: number | undefined } | undefined;
  /** Bytes of keys and values of one token in all layers. */
  readonly kvTokenBytes?: number | undefined;
  readonly shape?: { readonly layers: number; readonly heads: number; readonly headDim: number } | undefined;
  readonly vocabSize: number;
  /** Undefined: the model serves token ids only, unless `engineText` is given. */
  readonly tokenizer: Tokenizer | undefined;
  /** In place of tokenizer and template. */
  readonly engineText?: EngineText | undefined;
  readonly chatTemplate: ChatTemplate | undefined;
  /** The template of chats with tools, if it is another. */
  readonly toolTemplate?: ChatTemplate | undefined;
  /** The texts of the beginning and end of a sequence in the template. */
  readonly bosToken: string | undefined;
  readonly eosToken: string | undefined;
  /** All token ids that end a sequence. */
  readonly eosIds: readonly number[];
  readonly defaults: SamplingDefaults;
  /** False for an encoder: chats and completions are refused. */
  readonly generates?: boolean;
  /** True for a reranker. */
  readonly ranks?: boolean;
  /** Of a reranker that reads query and document in a chat: the score is its product with the last hidden state. */
  readonly rankingRow?: Float32Array | undefined;
  /** Undefined: it yields no embeddings. */
  readonly embedding?: EmbeddingSupport | undefined;
  /** Those of the defaults that the model's files state. */
  readonly stated?: Partial<SamplingDefaults>;
}
