// Tokenizer metadata of a GGUF file as plain data.

/** The `tokenizer.ggml.*` keys of a GGUF file, `model` to `add_space_prefix`. */
export interface GgufTokenizerData {
  /** `gpt2` (byte-level BPE), `llama` (SentencePiece style) or `bert` (WordPiece). */
  readonly model: string;
  readonly pre?: string | undefined;
  readonly tokens: readonly string[];
  /** (tokens): values of `tokenType`; undefined: all tokens are normal. */
  readonly tokenTypes?: ArrayLike<number> | undefined;
  /** (tokens): only for `llama`. */
  readonly scores?: ArrayLike<number> | undefined;
  /** Only for `gpt2`: 'left right', best first. */
  readonly merges?: readonly string[] | undefined;
  readonly bosId?: number | undefined;
  readonly eosId?: number | undefined;
  /** End of turn and end of message, if the file has them (`eot_token_id`, `eom_token_id`). */
  readonly eotId?: number | undefined;
  readonly eomId?: number | undefined;
  readonly unkId?: number | undefined;
  readonly padId?: number | undefined;
  /** Only for `bert`. */
  readonly sepId?: number | undefined;
  readonly clsId?: number | undefined;
  readonly addBos?: boolean | undefined;
  readonly addEos?: boolean | undefined;
  readonly addSpacePrefix?: boolean | undefined;
  /**
   * White space after a control or user-defined token belongs to it, except after the begin, unknown and
   * `<|endoftext|>` tokens (Phi-3).
   */
  readonly stripAfterSpecial?: boolean | undefined;
}

/** Token kinds in `tokenizer.ggml.token_type`. */
export const tokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;
