// The tokenizer part of a GGUF file's metadata, as plain data.

/** The `tokenizer.ggml.*` keys of a GGUF file, `model` to `add_space_prefix`. */
export interface GgufTokenizerData {
  /** `gpt2` (byte-level BPE) or `llama` (SentencePiece style). */
  readonly model: string;
  readonly pre?: string | undefined;
  readonly tokens: readonly string[];
  /** (tokens): values of `tokenType`; every token is ordinary where missing. */
  readonly tokenTypes?: ArrayLike<number> | undefined;
  /** (tokens): `llama` only. */
  readonly scores?: ArrayLike<number> | undefined;
  /** `gpt2` only: 'left right', best first. */
  readonly merges?: readonly string[] | undefined;
  readonly bosId?: number | undefined;
  readonly eosId?: number | undefined;
  /** End of turn and of message, where the file names them (`eot_token_id`, `eom_token_id`). */
  readonly eotId?: number | undefined;
  readonly eomId?: number | undefined;
  readonly unkId?: number | undefined;
  readonly padId?: number | undefined;
  readonly addBos?: boolean | undefined;
  readonly addEos?: boolean | undefined;
  readonly addSpacePrefix?: boolean | undefined;
  /** White space behind a control or user-defined token belongs to it, but for the begin, unknown and `<|endoftext|>` tokens (Phi-3). */
  readonly stripAfterSpecial?: boolean | undefined;
}

/** Kinds of token in `tokenizer.ggml.token_type`. */
export const tokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;
