// The interface of every tokenizer, independent of the file format.

export interface EncodeOptions {
  /** Add the model's begin and end tokens. Default true; a rendered chat template already contains them. */
  readonly addSpecial?: boolean;
  /** Parse special tokens spelled out in the text as those tokens. Default true. */
  readonly parseSpecial?: boolean;
}

/** Text to token ids and back. Synchronous and pure. Accepts any string; an unpaired surrogate counts as U+FFFD. */
export interface Tokenizer {
  readonly vocabSize: number;
  readonly bosId: number | undefined;
  /** Tokens that end a sequence or a turn. The first is the model's end-of-sequence token. */
  readonly eosIds: readonly number[];
  /** Control tokens: never part of the visible text. */
  readonly specialIds: ReadonlySet<number>;
  /** The first token of a text carries a space that the text does not have (SentencePiece). */
  readonly addsSpacePrefix: boolean;
  encode(text: string, options?: EncodeOptions): number[];
  /** Bytes of a token in the text: none for a special token or an unknown id. The array is shared: read-only. */
  decodeBytes(id: number): Uint8Array;
  /** Like `decodeBytes`, but special tokens give their spelling. */
  tokenBytes(id: number): Uint8Array;
  isSpecial(id: number): boolean;
}
