// The response to a completion in the OpenAI shapes, whole and by chunks.

import { answerId } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import type { Delta, TokenEntry } from './choice-output.ts';
import type { EndpointCall, EndpointContext } from './endpoint.ts';
import type { Choice, FinishReason } from './run-choices.ts';
import type { CompletionBody } from './schema.ts';
import { TokenNames } from './token-names.ts';

export interface CompletionText {
  readonly choice: Choice;
  /** Log-probabilities of the prompt tokens, if echoed. */
  readonly promptEntries: TokenEntry[];
  text: string;
  entries: TokenEntry[];
  finish: FinishReason;
}

const decoder = new TextDecoder();

export class CompletionShape {
  /** True if the response includes tokens without text. */
  readonly needsEntries: boolean;
  readonly #body: CompletionBody;
  readonly #model: ServedModel;
  readonly #names: TokenNames;
  readonly #head: { readonly id: string; readonly object: string; readonly created: number; readonly model: string };
  readonly #echoes = new Map<Int32Array, string>();

  constructor(body: CompletionBody, { model }: EndpointContext, { requestId }: EndpointCall) {
    this.#body = body;
    this.#model = model;
    this.#names = new TokenNames(model.tokenizer, body.return_tokens_as_token_ids === true);
    this.needsEntries = body.logprobs !== undefined || body.return_token_ids === true;
    this.#head = {
      id: answerId('cmpl', requestId),
      object: 'text_completion',
      created: Math.floor(Date.now() / 1000),
      model: model.id,
    };
  }

  whole(texts: readonly CompletionText[], usage: object): object {
    const choices = texts.map(({ choice, promptEntries, text, entries, finish }) => {
      const echo = this.#echo(choice);
      return {
        index: choice.index,
        text: echo + text,
        logprobs: this.#logprobs(promptEntries, 0, entries, echo.length) ?? null,
        finish_reason: finish,
        ...this.#promptIds(choice),
        ...this.#ids(entries),
      };
    });
    return { ...this.#head, choices, usage };
  }

  /** Sent before the first output of a choice: its echo and its prompt ids, if requested. */
  firstChunk(choice: Choice, promptEntries: readonly TokenEntry[]): object | undefined {
    const promptIds = this.#promptIds(choice);
    if (this.#body.echo !== true && Object.keys(promptIds).length === 0) return undefined;
    const logprobs = this.#logprobs(promptEntries, 0, [], 0) ?? null;
    const ids = { ...promptIds, ...this.#ids([]) };
    return this.#chunk({ index: choice.index, text: this.#echo(choice), logprobs, finish_reason: null, ...ids });
  }

  deltaChunk(choice: Choice, { text, entries }: Delta): object {
    const logprobs = this.#logprobs([], 0, entries, this.#echo(choice).length) ?? null;
    return this.#chunk({ index: choice.index, text, logprobs, finish_reason: null, ...this.#ids(entries) });
  }

  finishChunk({ index }: Choice, reason: FinishReason): object {
    return this.#chunk({ index, text: '', logprobs: null, finish_reason: reason, ...this.#ids([]) });
  }

  usageChunk(usage: object): object | undefined {
    return this.#body.stream_options?.include_usage === true ? { ...this.#head, choices: [], usage } : undefined;
  }

  #chunk(choice: object): object {
    const usage = this.#body.stream_options?.include_usage === true ? { usage: null } : {};
    return { ...this.#head, choices: [choice], ...usage };
  }

  /** The text of the prompt if the request has `echo`, else empty. */
  #echo({ request }: Choice): string {
    const { tokenizer } = this.#model;
    if (this.#body.echo !== true || tokenizer === undefined) return '';
    const known = this.#echoes.get(request.prompt);
    if (known !== undefined) return known;
    const bytes = Array.from(request.prompt, (id) => Buffer.from(tokenizer.decodeBytes(id)));
    const text = decoder.decode(Buffer.concat(bytes));
    const echo = tokenizer.addsSpacePrefix && text.startsWith(' ') ? text.slice(1) : text;
    this.#echoes.set(request.prompt, echo);
    return echo;
  }

  /** Prompt entries have no offsets in the text: they are computed from the texts of the tokens. */
  #logprobs(
    prompt: readonly TokenEntry[],
    promptStart: number,
    output: readonly TokenEntry[],
    outputStart: number,
  ): object | undefined {
    if (this.#body.logprobs === undefined) return undefined;
    let at = promptStart;
    const offsets = prompt.map(({ id }) => {
      const start = at;
      at += decoder.decode(this.#model.tokenizer?.decodeBytes(id)).length;
      return start;
    });
    const entries = [...prompt, ...output];
    return {
      tokens: entries.map(({ id }) => this.#names.name(id).token),
      token_logprobs: entries.map(({ logprob }) => logprob ?? null),
      top_logprobs: entries.map((entry) => this.#top(entry)),
      text_offset: [...offsets, ...output.map(({ start }) => outputStart + start)],
    };
  }

  #top({ id, alternatives, logprob }: TokenEntry): object | null {
    if (logprob === undefined) return null;
    const top: Record<string, number> = Object.create(null);
    // Includes the token itself, as OpenAI does. Of two tokens with the same text, the likelier one is kept.
    for (const entry of [...alternatives, { id, logprob }]) top[this.#names.name(entry.id).token] ??= entry.logprob;
    return top;
  }

  #ids(entries: readonly TokenEntry[]): object {
    return this.#body.return_token_ids === true ? { token_ids: entries.map(({ id }) => id) } : {};
  }

  #promptIds({ request }: Choice): object {
    return this.#body.return_token_ids === true ? { prompt_token_ids: [...request.prompt] } : {};
  }
}
