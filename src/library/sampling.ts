// The options of sampling and output that chats and completions share.

/** How tokens are selected, and when the output ends. Left-out options are those of the model, or without effect. */
export interface SamplingOptions {
  /** Aborting it ends the request and frees its KV memory; the run rejects with the reason of the signal. */
  readonly signal?: AbortSignal | undefined;
  /** Output tokens of an answer at most. Default: the rest of the context. */
  readonly maxTokens?: number | undefined;
  /** The output has at least this number of tokens. */
  readonly minTokens?: number | undefined;
  /** 0 always selects the most probable token. */
  readonly temperature?: number | undefined;
  readonly topP?: number | undefined;
  readonly topK?: number | undefined;
  readonly minP?: number | undefined;
  readonly repetitionPenalty?: number | undefined;
  readonly frequencyPenalty?: number | undefined;
  readonly presencePenalty?: number | undefined;
  /** The same seed and prompt select the same tokens. */
  readonly seed?: number | undefined;
  /** Texts that end the output, and are no part of it. */
  readonly stop?: string | readonly string[] | undefined;
  /** Requests of larger priority run first. Default 0. */
  readonly priority?: number | undefined;
  /** Requests with different salts share no cached prefix. */
  readonly cacheSalt?: string | undefined;
}

/** The fields of a body. */
export function bodySampling(options: SamplingOptions): object {
  return {
    max_tokens: options.maxTokens,
    min_tokens: options.minTokens,
    temperature: options.temperature,
    top_p: options.topP,
    top_k: options.topK,
    min_p: options.minP,
    repetition_penalty: options.repetitionPenalty,
    frequency_penalty: options.frequencyPenalty,
    presence_penalty: options.presencePenalty,
    seed: options.seed,
    stop: options.stop,
    priority: options.priority,
    cache_salt: options.cacheSalt,
  };
}
