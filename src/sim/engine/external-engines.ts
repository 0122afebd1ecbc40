// Instances as external engines show themselves: what the conductor receives of their requests, and learns from it.
import { StreamCosts } from '../../core/fleet/stream-costs.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { PrefillObserver } from '../../core/router/placement/prefill-observer.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { LearnedCost } from './learned-cost.ts';

type Event = ConductorEvent<LengthRequest>;
type Started = Extract<Event, { kind: 'generationEvent' }>;

/** Interval at which step costs are read, as those of live engines. */
const pollUs = 1_000_000;

/**
 * An engine does not announce the start of a prefill: the event comes with the first tokens, or with the end of the
 * prefill. Prefill times and step costs are learned from streams, by the classes that learn them of live engines.
 */
export class ExternalEngines {
  readonly prefills: PrefillObserver;
  /** (instances): step times as learned, for admission; undefined: the cost models of the instances. */
  readonly steps: readonly LearnedCost[] | undefined;
  /** (instances) */
  readonly #costs: readonly StreamCosts[];
  /** (instances) */
  readonly #polledUs: Float64Array;
  /** Starts that are not known yet. */
  readonly #started = new Map<RequestId, Started>();

  constructor(instances: number, steps?: readonly LearnedCost[]) {
    this.steps = steps;
    this.prefills = new PrefillObserver(Array.from({ length: instances }, (_, i) => i));
    this.#costs = Array.from({ length: instances }, () => new StreamCosts());
    this.#polledUs = new Float64Array(instances);
  }

  /** @param decodeAt another engine that decodes; undefined: none */
  forwarded(
    nowUs: number,
    { id, inputTokens }: LengthRequest,
    instance: InstanceIndex,
    decodeAt: InstanceIndex | undefined,
  ): void {
    this.prefills.forwarded(instance, id, inputTokens);
    this.#costs[instance].forwarded(nowUs, id, inputTokens);
    if (decodeAt !== undefined) this.#costs[decodeAt].forwarded(nowUs, id, inputTokens);
  }

  cancelled(nowUs: number, instance: InstanceIndex, id: RequestId): void {
    this.prefills.forget(id);
    this.#started.delete(id);
    this.#costs[instance].ended(nowUs, id);
  }

  /** The events that the conductor receives when an instance sends this one. */
  received(nowUs: number, event: Event): readonly Event[] {
    if (event.kind !== 'generationEvent' && event.kind !== 'prefilled') return [event];
    const { instance, id } = event;
    if (event.kind === 'generationEvent' && event.event.kind === 'started') {
      // The decode engine of a hand-off repeats the start.
      if (!this.#started.has(id)) this.#started.set(id, event);
      return [];
    }
    const prefillUs = this.#prefillUs(nowUs, event);
    const held = this.#started.get(id);
    const events: Event[] = [];
    if (held !== undefined && held.event.kind === 'started' && prefillUs !== undefined) {
      this.#started.delete(id);
      events.push({ ...held, event: { ...held.event, prefillUs } });
    }
    events.push(event);
    for (const each of events) this.#learn(nowUs, each);
    this.#poll(nowUs, instance);
    return events;
  }

  /** The duration of a prefill that has ended. */
  #prefillUs(nowUs: number, event: Extract<Event, { kind: 'generationEvent' | 'prefilled' }>): number | undefined {
    const { instance, id } = event;
    const costs = this.#costs[instance];
    if (event.kind === 'generationEvent' && event.event.kind === 'tokens') return costs.received(nowUs, id, 1);
    if (event.kind === 'generationEvent' && event.event.kind !== 'finished' && event.event.kind !== 'failed')
      return undefined;
    const prefillUs = event.kind === 'prefilled' ? costs.received(nowUs, id, 1) : undefined;
    costs.ended(nowUs, id);
    if (event.kind === 'generationEvent') this.#started.delete(id);
    return prefillUs;
  }

  #learn(nowUs: number, event: Event): void {
    if (event.kind === 'generationEvent') this.prefills.received(nowUs, event.instance, event.id, event.event);
    else if (event.kind === 'prefilled') this.prefills.prefilled(nowUs, event.id);
  }

  #poll(nowUs: number, instance: InstanceIndex): void {
    const { steps } = this.#costs[instance];
    if (nowUs - this.#polledUs[instance] < pollUs || steps.observed === 0) return;
    this.#polledUs[instance] = nowUs;
    this.prefills.observe(instance, { stepCost: steps.coefficients });
    this.steps?.[instance].setCoefficients(steps.coefficients);
  }
}
