// The traffic of the soak bench: requests of many kinds, drawn from a seed.
import { counterUniform } from '../../util/counter-random.ts';

/** The behaviour of the client during the response. */
export type ClientBehaviour =
  | { readonly kind: 'reads' }
  /** Closes its connection after this number of milliseconds. */
  | { readonly kind: 'cancels'; readonly afterMs: number }
  /** Waits this long before each read. */
  | { readonly kind: 'readsSlowly'; readonly pauseMs: number };

export interface SoakRequest {
  readonly path: string;
  readonly body: string;
  readonly client: ClientBehaviour;
  /** True if the request must be refused as malformed. */
  readonly bad: boolean;
}

const completionPath = '/v1/completions';
const chatPath = '/v1/chat/completions';
// Ids in the vocabulary of every model, above the special tokens.
const firstTokenId = 300;
const tokenIds = 3500;
const sharedPrefixes = 6;
const sharedTokens = 600;

const badFields: readonly object[] = [
  { temperature: 'hot' },
  { n: 0 },
  { prompt: [-1] },
  { max_tokens: 1e12 },
  { tools: [{ type: 'function' }] },
  { wings: 2 },
  { stop: [1] },
  { model: 'another' },
];

/** Requests drawn from a seed. */
export class Traffic {
  readonly #seed: number;
  readonly #model: string;
  readonly #hasChat: boolean;
  #drawn = 0;

  constructor(seed: number, model: string, hasChat: boolean) {
    this.#seed = seed;
    this.#model = model;
    this.#hasChat = hasChat;
  }

  next(): SoakRequest {
    const kind = this.#below(20);
    if (kind < 2) return this.#completion({ ...this.#of(badFields) }, { kind: 'reads' }, true);
    if (kind === 2) return this.#brokenJson();
    if (kind < 6) return this.#completion(this.#output(400), { kind: 'cancels', afterMs: this.#below(800) });
    if (kind === 6)
      return this.#completion({ ...this.#output(150), stream: true }, { kind: 'readsSlowly', pauseMs: 20 });
    if (kind < 10) return this.#completion({ ...this.#output(40), prompt: this.#sharedPrompt() });
    if (kind === 10) return this.#completion({ ...this.#output(30), n: 4, prompt: this.#prompt(1 + this.#below(200)) });
    if (kind === 11) return this.#completion({ ...this.#output(40), logprobs: 5, echo: true });
    if (kind === 12) return this.#completion({ ...this.#output(100), stop: ['a', 'zebra'], stop_token_ids: [300] });
    if (kind === 13) return this.#completion({ ...this.#output(20), prompt: this.#prompt(1500 + this.#below(2000)) });
    if (kind === 14) return this.#completion({ ...this.#output(600), prompt: this.#prompt(20), stream: true });
    if (kind === 15) return this.#completion({ ...this.#output(10), prompt: [this.#prompt(9), this.#prompt(300)] });
    if (kind < 18 && this.#hasChat) return this.#chat();
    return this.#completion(this.#output(30));
  }

  /** A short request for bursts of hundreds. */
  short(): SoakRequest {
    return this.#completion({ max_tokens: 8, prompt: this.#prompt(16) });
  }

  #completion(fields: object, client: ClientBehaviour = { kind: 'reads' }, bad = false): SoakRequest {
    const prompt = this.#prompt(1 + this.#below(400));
    const body = { model: this.#model, prompt, stream: this.#below(2) === 0, seed: this.#below(1e9), ...fields };
    return { path: completionPath, body: JSON.stringify(body), client, bad };
  }

  #chat(): SoakRequest {
    const content = 'Tell me about the fox and the lantern. '.repeat(1 + this.#below(20));
    const messages = [{ role: 'user', content }];
    const body = {
      model: this.#model,
      messages,
      stream: this.#below(2) === 0,
      max_tokens: 1 + this.#below(60),
      logprobs: true,
    };
    return { path: chatPath, body: JSON.stringify(body), client: { kind: 'reads' }, bad: false };
  }

  #brokenJson(): SoakRequest {
    const { body } = this.#completion({});
    return {
      path: completionPath,
      body: body.slice(0, 1 + this.#below(body.length - 2)),
      client: { kind: 'reads' },
      bad: true,
    };
  }

  #output(most: number): object {
    return { max_tokens: 1 + this.#below(most), ignore_eos: this.#below(2) === 0, temperature: this.#below(3) / 2 };
  }

  #prompt(tokens: number): number[] {
    return Array.from({ length: tokens }, () => firstTokenId + this.#below(tokenIds));
  }

  /** One of a few long prefixes, and a random end. */
  #sharedPrompt(): number[] {
    const which = this.#below(sharedPrefixes);
    const prefix = Array.from({ length: sharedTokens }, (_, at) => firstTokenId + ((at * 31 + which * 977) % tokenIds));
    return [...prefix, ...this.#prompt(1 + this.#below(50))];
  }

  #of<T>(items: readonly T[]): T {
    return items[this.#below(items.length)] as T;
  }

  #below(bound: number): number {
    return Math.floor(counterUniform(this.#seed, 0, this.#drawn++) * bound);
  }
}
