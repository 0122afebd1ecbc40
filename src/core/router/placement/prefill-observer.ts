// Observes prefills from the forwarded prompt to the first token, to learn prefill times.

import { withoutServedAttentionUs } from '../../cost/dist-attention.ts';
import { PrefillTimes } from '../../cost/prefill-times.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { PlacedLoad } from '../../protocol/instance-report.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../protocol/ports.ts';
import { batchLimits } from '../../scheduler/executor/token-limits.ts';

interface Prompt {
  readonly instance: InstanceIndex;
  readonly tokens: number;
  cachedTokens: number;
  startedUs: number | undefined;
  /** Its instance has had no other request since the prompt was forwarded. */
  alone: boolean;
}

export class PrefillObserver {
  /** (instances): equal instances share one. */
  readonly times: readonly PrefillTimes[];
  /** Forwarded prompts without a first token. */
  readonly #prompts = new Map<RequestId, Prompt>();
  /** The instance of each request that has not ended there. */
  readonly #live = new Map<RequestId, InstanceIndex>();
  /** (instances): number of them. */
  readonly #requests: number[];
  /** (instances): the last report has requests of other conductors. */
  readonly #hasOthers: boolean[];

  /** (instances): share of steps that attention for debtors takes, in thousandths. */
  readonly #servedPermille: number[];

  /** @param kinds (instances): equal for instances of equal speed */
  constructor(kinds: readonly number[]) {
    this.times = PrefillTimes.of(kinds, batchLimits.tokensMax);
    this.#requests = kinds.map(() => 0);
    this.#hasOthers = kinds.map(() => false);
    this.#servedPermille = kinds.map(() => 0);
  }

  /** Prompts without a first token, and requests that have not ended. */
  get size(): number {
    return Math.max(this.#prompts.size, this.#live.size);
  }

  /** Takes the learned step times of an instance. */
  observe(
    instance: InstanceIndex,
    { stepCost, servedAttentionPermille = 0 }: Pick<InstanceSnapshot, 'stepCost' | 'servedAttentionPermille'>,
  ): void {
    this.#servedPermille[instance] = servedAttentionPermille;
    if (stepCost !== undefined) this.times[instance]?.setStepCost(stepCost);
  }

  /** Takes the load that other conductors have placed on the instance, by its report. */
  setOthers(instance: InstanceIndex, others: PlacedLoad | undefined): void {
    const hasOthers = others !== undefined && others.prefills.length + others.rows > 0;
    this.#hasOthers[instance] = hasOthers;
    if (hasOthers) this.#meetOther(instance);
  }

  /** The pending prompts of the instance are not alone. */
  #meetOther(instance: InstanceIndex): void {
    for (const prompt of this.#prompts.values()) if (prompt.instance === instance) prompt.alone = false;
  }

  forwarded(instance: InstanceIndex, id: RequestId, tokens: number): void {
    this.forget(id);
    const alone = this.#requests[instance] === 0 && this.#hasOthers[instance] !== true;
    if (!alone) this.#meetOther(instance);
    this.#prompts.set(id, { instance, tokens, cachedTokens: 0, startedUs: undefined, alone });
    this.#live.set(id, instance);
    this.#requests[instance]++;
  }

  /** Takes an event of an instance. */
  received(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    if (event.kind === 'finished' || event.kind === 'failed') {
      this.forget(id);
      return;
    }
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    if (event.kind === 'started' && instance !== prompt.instance) {
      // The decode instance reports the start after the prefill has ended.
      if (prompt.startedUs === undefined) this.forget(id);
    } else if (event.kind === 'started' && (event.ahead === true || event.prefillUs === 0)) {
      // The observed time would include the wait for its prefix, or its steps are those of another prefill.
      this.#prompts.delete(id);
    } else if (event.kind === 'started') {
      prompt.startedUs = nowUs - (event.prefillUs ?? 0);
      prompt.cachedTokens = event.cachedTokens;
    } else if (event.kind === 'tokens') {
      this.#ended(nowUs, id);
      // Its instance hands it off.
      if (instance !== prompt.instance) this.forget(id);
    }
  }

  /** The prefill has ended, and another instance decodes. */
  prefilled(nowUs: number, id: RequestId): void {
    this.#ended(nowUs, id);
    this.forget(id);
  }

  #ended(nowUs: number, id: RequestId): void {
    const prompt = this.#prompts.get(id);
    const times = prompt && this.times[prompt.instance];
    if (prompt?.startedUs !== undefined && (prompt.alone || times?.isReported === false))
      times?.observe(prompt.tokens, prompt.cachedTokens, this.#ownUs(prompt.instance, nowUs - prompt.startedUs));
    this.#prompts.delete(id);
  }

  /** A prefill time without attention for debtors. */
  #ownUs(instance: InstanceIndex, us: number): number {
    return withoutServedAttentionUs(us, this.#servedPermille[instance] ?? 0);
  }

  forget(id: RequestId): void {
    this.#prompts.delete(id);
    const instance = this.#live.get(id);
    if (instance === undefined) return;
    this.#live.delete(id);
    this.#requests[instance]--;
  }
}
