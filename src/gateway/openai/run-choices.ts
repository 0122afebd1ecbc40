// Runs the choices of one HTTP request on the inference port: submits all or none, follows their events, cancels the rest.
import type { GenerationEvent, GenerationRequest, InferencePort, TokenLogprobs } from '../../core/protocol/ports.ts';
import { assertNever } from '../../util/assert-never.ts';
import { ApiError, fromFailure } from '../http/errors.ts';
import type { RequestClock } from '../metrics/metrics.ts';
import type { ChoiceOutput, Delta } from './choice-output.ts';

export type FinishReason = 'stop' | 'length' | 'tool_calls';

export interface Choice {
  readonly index: number;
  readonly request: GenerationRequest;
  readonly output: ChoiceOutput;
}

/** Receives the progress of choices. `finished` is the last call, once per choice. */
export interface ChoiceHandler {
  /** The prompt of a choice is scheduled: `usage` has its cached tokens. */
  started?(choice: Choice, usage: Usage): void;
  promptLogprobs(choice: Choice, logprobs: TokenLogprobs): void;
  /** The pooled hidden states of a prompt that requires them. */
  embedding?(choice: Choice, values: Float32Array): void;
  delta(choice: Choice, delta: Delta): void;
  finished(choice: Choice, reason: FinishReason): void;
}

export interface Usage {
  promptTokens: number;
  cachedTokens: number;
  /** Prompt tokens kept in sparse layers, averaged over these layers; undefined: all. */
  keptTokens?: number;
  completionTokens: number;
  /** Of those, tokens of reasoning. */
  reasoningTokens: number;
}

/** Running choices. */
export class RunningChoices {
  /** Resolves when all choices have finished; rejects with the first failure, after which the others are cancelled. */
  readonly done: Promise<void>;
  readonly usage: Usage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0, reasoningTokens: 0 };
  readonly #port: InferencePort;
  readonly #handler: ChoiceHandler;
  readonly #times: RequestClock;
  readonly #open = new Map<string, Choice>();
  readonly #keptOfPrompt = new Map<Int32Array, number>();
  readonly #cachedOfPrompt = new Map<Int32Array, number>();
  #left: number;
  #failure: unknown;
  #resolve: () => void = () => {};
  #reject: (error: unknown) => void = () => {};

  /** @throws ApiError if a choice is refused; then no choice runs */
  constructor(port: InferencePort, choices: readonly Choice[], handler: ChoiceHandler, times: RequestClock) {
    this.#port = port;
    this.#handler = handler;
    this.#times = times;
    this.#left = choices.length;
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // An early failure must not end the process as an unhandled rejection; `done` still rejects.
    this.done.catch(() => {});
    this.#submit(choices);
  }

  /** Cancels running choices: the handler receives no more events and `done` rejects. No effect after the end. */
  cancel(): void {
    if (this.#open.size === 0) return;
    this.#times.cancelled();
    this.#abandon(clientDisconnected());
  }

  #abandon(error: unknown): void {
    const ids = [...this.#open.keys()];
    this.#open.clear();
    for (const id of ids) this.#port.cancel(id);
    this.#failure ??= error;
    this.#reject(error);
  }

  #submit(choices: readonly Choice[]): void {
    for (const choice of choices) {
      this.#open.set(choice.request.id, choice);
      try {
        this.#port.submit(choice.request, (event) => this.#receive(choice, event));
      } catch (error) {
        this.#abandon(error);
      }
      if (this.#failure !== undefined) throw this.#failure;
    }
    const prompts = new Set(choices.map((choice) => choice.request.prompt));
    for (const prompt of prompts) this.usage.promptTokens += prompt.length;
  }

  /** Errors of one response must not reach the port, which serves other requests. */
  #receive(choice: Choice, event: GenerationEvent): void {
    if (!this.#open.has(choice.request.id)) return;
    try {
      this.#apply(choice, event);
    } catch (error) {
      this.#abandon(error);
    }
  }

  #apply(choice: Choice, event: GenerationEvent): void {
    switch (event.kind) {
      case 'accepted':
        break;
      case 'started':
        this.#started(choice, event.cachedTokens);
        if (event.keptTokens !== undefined) this.#selected(choice, event.keptTokens);
        this.#handler.started?.(choice, this.usage);
        break;
      case 'prompt-logprobs':
        this.#handler.promptLogprobs(choice, event.logprobs);
        break;
      case 'embedding':
        this.#handler.embedding?.(choice, event.values);
        break;
      case 'tokens':
        this.#tokens(choice, event);
        break;
      case 'finished':
        this.#finish(choice, event.reason, choice.output.finish());
        break;
      case 'failed':
        this.#open.delete(choice.request.id);
        this.#abandon(fromFailure(event));
        break;
      default:
        assertNever(event);
    }
  }

  /** The cached tokens of a prompt are the fewest of its choices: the other choices share computed blocks. */
  #started(choice: Choice, cachedTokens: number): void {
    const { prompt } = choice.request;
    const before = this.#cachedOfPrompt.get(prompt);
    const now = Math.min(before ?? cachedTokens, cachedTokens);
    this.#cachedOfPrompt.set(prompt, now);
    this.usage.cachedTokens += now - (before ?? 0);
  }

  #selected({ request: { prompt } }: Choice, keptTokens: number): void {
    if (this.#keptOfPrompt.has(prompt)) return;
    this.#keptOfPrompt.set(prompt, keptTokens);
    this.usage.keptTokens = (this.usage.keptTokens ?? 0) + keptTokens;
  }

  #tokens(choice: Choice, { tokens, logprobs, text }: Extract<GenerationEvent, { kind: 'tokens' }>): void {
    if (tokens.length > 0) this.#times.tokens(choice.index, tokens.length);
    this.usage.completionTokens += tokens.length;
    const delta = choice.output.push(tokens, logprobs, text);
    if (!delta.hasEnded) {
      this.#handler.delta(choice, delta);
      return;
    }
    this.#port.cancel(choice.request.id);
    this.#finish(choice, 'stop', delta);
  }

  #finish(choice: Choice, reason: 'stop' | 'length', rest: Delta): void {
    this.#open.delete(choice.request.id);
    this.usage.reasoningTokens += choice.output.reasoningTokens;
    this.#handler.delta(choice, rest);
    this.#handler.finished(choice, reason === 'stop' && choice.output.hasCalls ? 'tool_calls' : reason);
    if (--this.#left > 0) return;
    this.#times.finished();
    this.#resolve();
  }
}

export function clientDisconnected(): ApiError {
  return new ApiError(499, 'Cannot continue: the client disconnected');
}
