// Common interface of the GGUF vocabulary kinds: plain text to ids, and the bytes of a token.

export interface VocabularyModel {
  /** Appends the ids of text without special tokens. `atStart`: the text is first or follows a special token. */
  encode(text: string, atStart: boolean, out: number[]): void;
  /** Bytes of a normal token; `id` is within the vocabulary. */
  bytes(id: number): Uint8Array;
}
