// An engine in the process of its user: chats, completions and tokens.

import { embeddingSchema, planEmbeddings } from '../gateway/embeddings/embeddings.ts';
import { planCompletion } from '../gateway/openai/completions.ts';
import { parseBody } from '../gateway/openai/fields.ts';
import { checkTokenId } from '../gateway/openai/params.ts';
import { chatPrompt, tokenizeText } from '../gateway/openai/prompt.ts';
import { completionSchema } from '../gateway/openai/schema.ts';
import { decodeTokens } from '../text/detokenizer.ts';
import { type ChatOptions, type ChatRun, type FinishReason, finishReason, mergeText, startChat } from './chat.ts';
import type { Engine, Usage } from './engine.ts';
import { InvalidRequestError } from './errors.ts';
import { bodyMessage, bodyTools, type Message, messageList, type NoTools, type ToolSet } from './messages.ts';
import { Run, type RunSink } from './run.ts';
import { bodySampling, type SamplingOptions } from './sampling.ts';
import type { Schema } from './schema.ts';

/** The model of an engine. */
export interface ModelDescription {
  readonly id: string;
  /** Tokens of prompt and output at most. */
  readonly contextTokens: number;
  readonly vocabSize: number;
  /** False: `complete` continues text, `chat` fails. */
  readonly canChat: boolean;
}

/** What an engine does now, and has done. */
export interface EngineStats {
  readonly running: number;
  readonly waiting: number;
  /** Pages of KV memory: `used` by running requests, `cached` for later ones, `free`. */
  readonly pages: { readonly total: number; readonly used: number; readonly cached: number; readonly free: number };
  readonly promptTokens: number;
  /** Of those, tokens from the prefix cache. */
  readonly cachedTokens: number;
  readonly generatedTokens: number;
}

/** Options of embeddings. */
export interface EmbedOptions {
  /** The hidden states that the vector is made of: the last token's, their mean, or the first token's. Default: the model's own. */
  readonly pooling?: 'last' | 'mean' | 'cls' | undefined;
  /** Elements of a vector, for models that were trained for shorter ones. */
  readonly dimensions?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** A piece of a running completion. */
export interface TextDelta {
  readonly type: 'text';
  readonly text: string;
}

/** A finished completion. */
export interface CompletionResult {
  readonly text: string;
  readonly finishReason: FinishReason;
  readonly usage: Usage;
}

/** A running completion. */
export type CompletionRun = Run<TextDelta, CompletionResult>;

/** An engine that `load` opened. Requests run at once, in batches, over one prefix cache. */
export class Llm implements AsyncDisposable {
  readonly #engine: Engine;

  /** @internal */
  constructor(engine: Engine) {
    this.#engine = engine;
  }

  get model(): ModelDescription {
    const { id, contextTokens, vocabSize, tokenizer, chatTemplate } = this.#engine.context.model;
    return { id, contextTokens, vocabSize, canChat: tokenizer !== undefined && chatTemplate !== undefined };
  }

  /**
   * Answers a conversation. `await` gives the whole answer, `for await` its pieces.
   * @param messages text is one message of the user
   * @throws InvalidRequestError, OverloadedError, OutputError, EngineError or ClosedError, by its promise and its loops
   */
  chat<const S extends Schema | undefined = undefined, const T = NoTools>(
    messages: string | readonly Message[],
    options: ChatOptions<S, T> = {},
  ): ChatRun<S, T> {
    return startChat(this.#engine, messageList(messages), options);
  }

  /**
   * Continues a text, or token ids, without a chat template.
   * @throws the errors of `chat`
   */
  complete(prompt: string | readonly number[], options: SamplingOptions = {}): CompletionRun {
    return new Run((sink) => this.#engine.work(() => this.#complete(prompt, options, sink), sink.signal), mergeText, [
      options.signal,
      this.#engine.closing,
    ]);
  }

  /**
   * One vector of length 1 for each text. Texts run beside other requests, in one batch where they fit.
   * @throws InvalidRequestError for a model without embeddings, or a text longer than the context; the errors of `chat`
   */
  embed(texts: readonly string[], { signal, ...options }: EmbedOptions = {}): Promise<Float32Array[]> {
    const { context, closing } = this.#engine;
    const stop = signal === undefined ? closing : AbortSignal.any([signal, closing]);
    return this.#engine.work(async () => {
      const call = this.#engine.newCall();
      const body = parseBody(embeddingSchema, { ...options, model: context.model.id, input: texts });
      const { choices, handler, vectors } = await planEmbeddings(body, context, call);
      await this.#engine.run(choices, handler, { accepted: () => {}, signal: stop });
      return vectors();
    }, stop);
  }

  /**
   * The token ids of a text, or of the prompt that a conversation becomes.
   * @param options `addSpecial` adds the tokens that begin a text (default true); `tools` are part of the prompt of a conversation
   */
  async tokenize(
    input: string | readonly Message[],
    { addSpecial = true, tools }: { readonly addSpecial?: boolean; readonly tools?: ToolSet } = {},
  ): Promise<number[]> {
    const { context } = this.#engine;
    return this.#engine.work(async () => {
      this.#engine.newCall();
      if (typeof input === 'string') {
        this.#tokenizer();
        return [...(await tokenizeText(input, 'input', addSpecial, context.encode))];
      }
      const toolList = tools === undefined ? {} : { tools: bodyTools(tools) };
      const body = { messages: input.map(bodyMessage), ...toolList } as Parameters<typeof chatPrompt>[0];
      return [...(await chatPrompt(body, context.model, context.encode)).tokens];
    });
  }

  /** The text of token ids. */
  async detokenize(tokens: readonly number[]): Promise<string> {
    return this.#engine.work(async () => {
      this.#engine.newCall();
      for (const id of tokens) checkTokenId(id, 'tokens', this.#engine.context.model);
      return decodeTokens(this.#tokenizer(), tokens, { skipSpecial: false });
    });
  }

  stats(): EngineStats {
    const { running, waiting, pages, promptTokens, cachedTokens, generatedTokens } = this.#engine.snapshot();
    return { running, waiting, pages, promptTokens, cachedTokens, generatedTokens };
  }

  /** Ends running requests, which reject with a ClosedError, and all threads of the engine. */
  close(): Promise<void> {
    return this.#engine.close();
  }

  /** `await using llm = await load()` closes the engine at the end of its block. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #tokenizer() {
    const { id, tokenizer } = this.#engine.context.model;
    if (tokenizer !== undefined) return tokenizer;
    throw new InvalidRequestError('invalid_value', `Cannot tokenize: model '${id}' has no tokenizer`, undefined);
  }

  async #complete(
    prompt: string | readonly number[],
    options: SamplingOptions,
    sink: RunSink<TextDelta>,
  ): Promise<CompletionResult> {
    const { context } = this.#engine;
    const call = this.#engine.newCall();
    const body = parseBody(completionSchema, { ...bodySampling(options), model: context.model.id, prompt });
    let text = '';
    let reason: FinishReason = 'stop';
    const usage = await this.#engine.run(
      await planCompletion(body, context, call),
      {
        promptLogprobs: () => {},
        delta: (_, { text: piece }) => {
          text += piece;
          if (piece !== '') sink.delta({ type: 'text', text: piece });
        },
        finished: (_, why) => {
          reason = finishReason(why);
        },
      },
      sink,
    );
    const { promptTokens, cachedTokens, completionTokens: outputTokens, reasoningTokens } = usage;
    return { text, finishReason: reason, usage: { promptTokens, cachedTokens, outputTokens, reasoningTokens } };
  }
}
