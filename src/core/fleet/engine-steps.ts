// The steps of all external engines of a gateway, from the events that its conductor takes and the effects that it yields.
import type { ConductorEvent } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { GenerationEvent, GenerationRequest } from '../protocol/ports.ts';
import { sizeOf } from '../protocol/request-size.ts';
import { type EngineStep, StreamSteps } from './stream-steps.ts';

interface HandedOff {
  readonly from: InstanceIndex;
  readonly decodeAt: InstanceIndex;
  readonly promptTokens: number;
}

/** Requests by the ids of their attempts. */
export class EngineSteps {
  readonly #isEngine: (instance: InstanceIndex) => boolean;
  readonly #steps = new Map<InstanceIndex, StreamSteps>();
  /** Prompts that one engine computes, and another one decodes afterwards. */
  readonly #handedOff = new Map<RequestId, HandedOff>();

  /** @param isEngine false: the instance reports its steps itself */
  constructor(isEngine: (instance: InstanceIndex) => boolean) {
    this.#isEngine = isEngine;
  }

  forwarded(
    nowUs: number,
    instance: InstanceIndex,
    request: GenerationRequest,
    decodeAt: InstanceIndex | undefined,
  ): void {
    if (!this.#isEngine(instance)) return;
    const { promptTokens } = sizeOf(request);
    this.#of(instance).forwarded(nowUs, request.id, promptTokens, 0);
    if (decodeAt !== undefined) this.#handedOff.set(request.id, { from: instance, decodeAt, promptTokens });
  }

  cancelled(id: RequestId): void {
    this.#handedOff.delete(id);
    for (const each of this.#steps.values()) each.ended(id);
  }

  /** To be called before the conductor takes the event. */
  received(nowUs: number, event: ConductorEvent): void {
    switch (event.kind) {
      case 'generationEvent':
        this.#generated(nowUs, event.instance, event.id, event.event);
        break;
      case 'prefilled': {
        const steps = this.#steps.get(event.instance);
        steps?.received(nowUs, event.id, 1);
        steps?.ended(event.id);
        break;
      }
      case 'released':
        this.cancelled(event.id);
        break;
      case 'instanceFailed':
        this.#failed(event.instance);
        break;
      default:
        break;
    }
  }

  /** The steps since the last call, by instance. */
  *take(): Generator<readonly [instance: InstanceIndex, steps: readonly EngineStep[]]> {
    for (const [instance, each] of this.#steps) {
      const steps = each.take();
      if (steps.length > 0) yield [instance, steps];
    }
  }

  /** Its requests have no further events, and those that it hands off, or receives, are retried. */
  #failed(instance: InstanceIndex): void {
    this.#steps.delete(instance);
    for (const [id, { from, decodeAt }] of [...this.#handedOff])
      if (from === instance || decodeAt === instance) this.cancelled(id);
  }

  #generated(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    const steps = this.#steps.get(instance);
    if (event.kind === 'started') steps?.started(id, event.cachedTokens);
    else if (event.kind === 'tokens' && event.tokens.length > 0)
      this.#received(nowUs, instance, id, event.tokens.length);
    else if (event.kind === 'finished' || event.kind === 'failed') this.cancelled(id);
  }

  /** The first tokens of a decode engine end the hand-off. */
  #received(nowUs: number, instance: InstanceIndex, id: RequestId, tokens: number): void {
    const { decodeAt, promptTokens } = this.#handedOff.get(id) ?? {};
    if (decodeAt !== instance || promptTokens === undefined) {
      this.#steps.get(instance)?.received(nowUs, id, tokens);
      return;
    }
    this.#handedOff.delete(id);
    this.#of(instance).handedOff(nowUs, id, promptTokens, tokens);
  }

  #of(instance: InstanceIndex): StreamSteps {
    const known = this.#steps.get(instance) ?? new StreamSteps();
    this.#steps.set(instance, known);
    return known;
  }
}
