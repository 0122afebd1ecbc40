// What every tokenizer offers, whatever file it came from.

export interface EncodeOptions {
  /** Add the begin and end tokens that the model wants. Default true; a rendered chat template already holds its own. */
  readonly addSpecial?: boolean;
  /** Read special tokens that are spelled out in the text as the tokens they name. Default true. */
  readonly parseSpecial?: boolean;
}

/** Text to token ids and back. Synchronous and pure; any string can be encoded (an unpaired surrogate counts as U+FFFD). */
export interface Tokenizer {
  readonly vocabSize: number;
  readonly bosId: number | undefined;
  /** Tokens that end a sequence or a turn; the first is the model's own end-of-sequence token. */
  readonly eosIds: readonly number[];
  /** Control tokens: never part of the visible text. */
  readonly specialIds: ReadonlySet<number>;
  /** A text's first token carries a space that the text does not have (SentencePiece). */
  readonly addsSpacePrefix: boolean;
  encode(text: string, options?: EncodeOptions): number[];
  /** Bytes that a token adds to the text: none for a special token or an unknown id. Shared: do not write. */
  decodeBytes(id: number): Uint8Array;
  /** As `decodeBytes`, but special tokens are spelled out. */
  tokenBytes(id: number): Uint8Array;
  isSpecial(id: number): boolean;
}
