// An inference port for gateway tests: answers each request by a script, one event per turn of the event loop.
import type {
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  Readiness,
  TokenLogprobs,
} from '../../src/core/protocol/ports.ts';

export type Script = (request: GenerationRequest) => readonly GenerationEvent[];

/** Log-probabilities of n tokens with `width` alternatives: token i has -i - 1. */
export function scriptedLogprobs(tokens: readonly number[], width: number): TokenLogprobs {
  return {
    width,
    logprobs: Float32Array.from(tokens, (_, i) => -i - 1),
    topTokens: Int32Array.from({ length: tokens.length * width }, (_, i) => i % width),
    topLogprobs: Float32Array.from({ length: tokens.length * width }, (_, i) => -(i % width) - 0.5),
  };
}

export class ScriptedPort implements InferencePort {
  readonly requests: GenerationRequest[] = [];
  readonly cancelled: string[] = [];
  unready: Exclude<Readiness, { readonly kind: 'ready' }> | undefined;
  readonly #script: Script;
  readonly #live = new Set<string>();

  constructor(script: Script) {
    this.#script = script;
  }

  submit(request: GenerationRequest, sink: (event: GenerationEvent) => void): void {
    this.requests.push(request);
    const [first, ...rest] = this.#script(request);
    if (first === undefined) return;
    sink(first);
    if (first.kind === 'failed') return;
    this.#live.add(request.id);
    this.#play(request.id, rest, sink);
  }

  overload(_ahead: number): Extract<GenerationEvent, { kind: 'failed' }> | undefined {
    return undefined;
  }

  cancel(id: string): void {
    if (this.#live.delete(id)) this.cancelled.push(id);
  }

  instances(): readonly InstanceSnapshot[] {
    return [this.snapshot()];
  }

  readiness(): Readiness {
    return this.unready ?? { kind: 'ready' };
  }

  snapshot(): InstanceSnapshot {
    return {
      ready: this.unready === undefined,
      waiting: 0,
      running: this.#live.size,
      pages: { total: 100, used: 40, cached: 10, free: 50 },
      promptTokens: 7,
      cachedTokens: 3,
      computedPromptTokens: 4,
      generatedTokens: 9,
      preemptions: 1,
      steps: 5,
      stepMsTotal: 1500,
      evictedBlocks: 2,
      usedPageSeconds: 0,
    };
  }

  drain(): Promise<void> {
    return Promise.resolve();
  }

  #play(id: string, events: readonly GenerationEvent[], sink: (event: GenerationEvent) => void): void {
    setImmediate(() => {
      const [first, ...rest] = events;
      if (first === undefined || !this.#live.has(id)) return;
      if (rest.length === 0) this.#live.delete(id);
      sink(first);
      this.#play(id, rest, sink);
    });
  }
}

export const accepted: GenerationEvent = { kind: 'accepted' };
export const started = (cachedTokens: number): GenerationEvent => ({ kind: 'started', cachedTokens });
export const tokens = (ids: readonly number[], logprobs?: TokenLogprobs): GenerationEvent => ({
  kind: 'tokens',
  tokens: Int32Array.from(ids),
  logprobs,
});
export const finished = (reason: 'stop' | 'length'): GenerationEvent => ({ kind: 'finished', reason });
