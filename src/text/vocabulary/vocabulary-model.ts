// What the kinds of GGUF vocabulary have in common: plain text to ids, and the bytes of a token.

export interface VocabularyModel {
  /** Appends the ids of text that holds no special tokens. `atStart`: nothing or a special token stands before it. */
  encode(text: string, atStart: boolean, out: number[]): void;
  /** Bytes of an ordinary token; `id` lies within the vocabulary. */
  bytes(id: number): Uint8Array;
}
