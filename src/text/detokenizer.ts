// Incremental detokenization: token ids to text, without splitting a character.

import type { Tokenizer } from './tokenizer.ts';
import { Utf8Decoder } from './utf8.ts';

export interface DetokenizerOptions {
  /** Omits special tokens from the text. Default true. */
  readonly skipSpecial?: boolean;
  /** Special tokens that `skipSpecial` does not omit. */
  readonly visible?: ReadonlySet<number> | undefined;
  /**
   * The first token begins a text, so a SentencePiece space prefix is dropped. False when a prompt is continued.
   * Default true.
   */
  readonly atStart?: boolean;
}

const spaceByte = 0x20;

/**
 * Incremental detokenizer of one sequence. The concatenated results of `push` and the last `flush` are the text of the
 * sequence.
 */
export class Detokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #skipSpecial: boolean;
  readonly #visible: ReadonlySet<number> | undefined;
  readonly #decoder = new Utf8Decoder();
  #dropSpace: boolean;

  constructor(tokenizer: Tokenizer, options: DetokenizerOptions = {}) {
    this.#tokenizer = tokenizer;
    this.#skipSpecial = options.skipSpecial ?? true;
    this.#visible = options.visible;
    this.#dropSpace = tokenizer.addsSpacePrefix && (options.atStart ?? true);
  }

  /** Text that is final after this token: '' while a character is incomplete. Invalid bytes become U+FFFD. */
  push(id: number): string {
    const isSkipped = this.#skipSpecial && this.#visible?.has(id) !== true;
    let bytes = isSkipped ? this.#tokenizer.decodeBytes(id) : this.#tokenizer.tokenBytes(id);
    if (this.#dropSpace && bytes.length > 0 && !this.#tokenizer.isSpecial(id)) {
      this.#dropSpace = false;
      if (bytes[0] === spaceByte) bytes = bytes.subarray(1);
    }
    return this.#decoder.push(bytes);
  }

  /** Ends the sequence: an incomplete character becomes U+FFFD. */
  flush(): string {
    return this.#decoder.flush();
  }
}

/** Text of a whole sequence. */
export function decodeTokens(tokenizer: Tokenizer, ids: Iterable<number>, options: DetokenizerOptions = {}): string {
  const detokenizer = new Detokenizer(tokenizer, options);
  const parts: string[] = [];
  for (const id of ids) parts.push(detokenizer.push(id));
  parts.push(detokenizer.flush());
  return parts.join('');
}
