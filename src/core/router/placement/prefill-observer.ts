// Watches prompts from the moment they are forwarded until their first token, so that prefill times are learned.
import { PrefillTimes } from '../../cost/prefill-times.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';

interface Prompt {
  readonly instance: InstanceIndex;
  readonly tokens: number;
  computed: number;
  startedUs: number | undefined;
}

export class PrefillObserver {
  /** (instances): those that are alike share one. */
  readonly times: readonly PrefillTimes[];
  /** Prompts that are forwarded and have no first token yet. */
  readonly #prompts = new Map<RequestId, Prompt>();

  /** @param kinds (instances): equal for those that compute alike */
  constructor(kinds: readonly number[]) {
    this.times = PrefillTimes.of(kinds);
  }

  get size(): number {
    return this.#prompts.size;
  }

  forwarded(instance: InstanceIndex, id: RequestId, tokens: number): void {
    this.#prompts.set(id, { instance, tokens, computed: tokens, startedUs: undefined });
  }

  received(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    if (event.kind === 'started' && instance !== prompt.instance) {
      // Whoever decodes says so once all is computed.
      if (prompt.startedUs === undefined) this.forget(id);
    } else if (event.kind === 'started' && event.ahead === true) {
      // What it waits for says nothing of what it computes.
      this.forget(id);
    } else if (event.kind === 'started') {
      prompt.startedUs = nowUs;
      prompt.computed = prompt.tokens - event.cachedTokens;
    } else if (event.kind === 'tokens') {
      this.prefilled(nowUs, id);
    } else if (event.kind === 'finished' || event.kind === 'failed') {
      this.forget(id);
    }
  }

  /** All of its prompt is computed. */
  prefilled(nowUs: number, id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt?.startedUs !== undefined)
      this.times[prompt.instance]?.observe(prompt.computed, nowUs - prompt.startedUs);
    this.forget(id);
  }

  /** Its prefill is of no interest any more. */
  forget(id: RequestId): void {
    this.#prompts.delete(id);
  }
}
