// The names of tokens in log-probability entries.
import type { Tokenizer } from '../../text/tokenizer.ts';

const decoder = new TextDecoder();

export interface TokenName {
  readonly token: string;
  /** UTF-8 bytes of a token; undefined for a model without tokenizer. */
  readonly bytes: number[] | undefined;
}

/** Names tokens by their text, or as `token_id:N`. */
export class TokenNames {
  readonly #tokenizer: Tokenizer | undefined;
  readonly #asIds: boolean;

  constructor(tokenizer: Tokenizer | undefined, asIds: boolean) {
    this.#tokenizer = tokenizer;
    this.#asIds = asIds || tokenizer === undefined;
  }

  name(id: number): TokenName {
    const bytes = this.#tokenizer?.tokenBytes(id);
    const token = this.#asIds || bytes === undefined ? `token_id:${id}` : decoder.decode(bytes);
    return { token, bytes: bytes === undefined ? undefined : [...bytes] };
  }
}
