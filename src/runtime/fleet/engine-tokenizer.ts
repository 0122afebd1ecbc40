// Token ids of texts and chats from /tokenize of the engines, for a gateway without the tokenizer of their model.
import type { EngineHttp } from './engine-http.ts';
import { reasonOf, statedReason } from './reason-of.ts';

const timeoutMs = 10_000;
/** Engines that are asked for one text. */
const attemptsMax = 3;
/** Of texts and their tokens that are kept. */
const cacheBytesMax = 2 ** 25;
const tokensMax = 2 ** 22;

/** What vLLM and SGLang tokenize: a text, or messages by the chat template. */
export type TokenizeInput =
  | { readonly prompt: string; readonly add_special_tokens: boolean }
  | { readonly messages: readonly object[]; readonly [option: string]: unknown };

/** No engine tokenizes now; a text that an engine refuses is another error. */
export class EnginesUnavailable extends Error {}

export class EngineTokenizer {
  readonly #engines: () => readonly EngineHttp[];
  readonly #model: string;
  /** Tokens by the body of the call, the oldest first. */
  readonly #cache = new Map<string, Int32Array>();
  #cacheBytes = 0;
  #turn = 0;

  /** @param engines that serve @param model its name at the engines */
  constructor(engines: () => readonly EngineHttp[], model: string) {
    this.#engines = engines;
    this.#model = model;
  }

  /**
   * Engines take turns, and one that fails is passed over.
   * @param signal ends the call @throws EnginesUnavailable, or Error with the reason of an engine that refuses the input
   */
  async tokenize(input: TokenizeInput, signal?: AbortSignal): Promise<Int32Array> {
    const body = JSON.stringify({ model: this.#model, ...input });
    const known = this.#cache.get(body);
    if (known !== undefined) return known;
    const engines = this.#engines();
    let why = 'no engine serves';
    for (let attempt = 0; attempt < Math.min(engines.length, attemptsMax); attempt++) {
      const engine = engines[this.#turn++ % engines.length];
      try {
        const { status, body: answer } = await engine.ask('/tokenize', body, timeoutMs, signal);
        if (status === 400 || status === 422) throw new Refused(statedReason(answer));
        if (status !== 200) throw new Error(`it answers ${status}`);
        return this.#keep(body, tokensIn(answer));
      } catch (error) {
        if (error instanceof Refused) throw new Error(`Cannot tokenize: ${error.message}`);
        if (signal?.aborted === true) throw error;
        why = `engine ${engine.url.href}: ${reasonOf(error)}`;
      }
    }
    throw new EnginesUnavailable(`Cannot tokenize: ${why}`);
  }

  #keep(body: string, tokens: Int32Array): Int32Array {
    const bytesOf = (key: string, { length }: Int32Array): number => 2 * key.length + 4 * length;
    const bytes = bytesOf(body, tokens);
    if (bytes > cacheBytesMax / 4 || this.#cache.has(body)) return tokens;
    this.#cache.set(body, tokens);
    this.#cacheBytes += bytes;
    for (const [key, kept] of this.#cache) {
      if (this.#cacheBytes <= cacheBytesMax) break;
      this.#cache.delete(key);
      this.#cacheBytes -= bytesOf(key, kept);
    }
    return tokens;
  }
}

class Refused extends Error {}

/** @throws Error in one line if the answer has no token ids */
function tokensIn(body: string): Int32Array {
  const { tokens } = JSON.parse(body) as { readonly tokens?: unknown };
  const isId = (each: unknown): boolean =>
    Number.isInteger(each) && (each as number) >= 0 && (each as number) < 2 ** 31;
  if (!Array.isArray(tokens) || tokens.length > tokensMax || !tokens.every(isId))
    throw new Error('its answer has no token ids');
  return Int32Array.from(tokens as readonly number[]);
}
