// Observes prefills from the forwarded prompt to the first token, to learn prefill times.

import { PrefillTimes } from '../../cost/prefill-times.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';

interface Prompt {
  readonly instance: InstanceIndex;
  readonly tokens: number;
  /** Tokens that are not cached. */
  computed: number;
  startedUs: number | undefined;
}

export class PrefillObserver {
  /** (instances): equal instances share one. */
  readonly times: readonly PrefillTimes[];
  /** Forwarded prompts without a first token. */
  readonly #prompts = new Map<RequestId, Prompt>();

  /** @param kinds (instances): equal for instances of equal speed */
  constructor(kinds: readonly number[]) {
    this.times = PrefillTimes.of(kinds);
  }

  get size(): number {
    return this.#prompts.size;
  }

  forwarded(instance: InstanceIndex, id: RequestId, tokens: number): void {
    this.#prompts.set(id, { instance, tokens, computed: tokens, startedUs: undefined });
  }

  /** Takes an event of an instance. */
  received(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    if (event.kind === 'started' && instance !== prompt.instance) {
      // The decode instance reports the start after the prefill has ended.
      if (prompt.startedUs === undefined) this.forget(id);
    } else if (event.kind === 'started' && event.ahead === true) {
      // The observed time would include the wait for its prefix.
      this.forget(id);
    } else if (event.kind === 'started') {
      prompt.startedUs = nowUs - (event.prefillUs ?? 0);
      prompt.computed = prompt.tokens - event.cachedTokens;
    } else if (event.kind === 'tokens') {
      this.prefilled(nowUs, id);
    } else if (event.kind === 'finished' || event.kind === 'failed') {
      this.forget(id);
    }
  }

  /** The prefill has ended. */
  prefilled(nowUs: number, id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt?.startedUs !== undefined)
      this.times[prompt.instance]?.observe(prompt.computed, nowUs - prompt.startedUs);
    this.forget(id);
  }

  forget(id: RequestId): void {
    this.#prompts.delete(id);
  }
}
