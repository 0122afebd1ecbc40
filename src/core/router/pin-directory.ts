// The pinned prefixes of the cluster: which instance keeps each, and until when.

import type { InstanceIndex, PinId, RequestId } from '../protocol/ids.ts';
import type { PinOrder, PinState } from '../protocol/pin-order.ts';
import type { ConductorContext } from './conductor-context.ts';

type Refused = Extract<PinState, { readonly kind: 'refused' }>;

interface Pin<Request> {
  instance: InstanceIndex;
  /** Instances that receive the order next when this one refuses. */
  alternatives: readonly InstanceIndex[];
  /** The refusal to report: one for lack of memory, which may pass, before the last one. */
  refusal: Refused | undefined;
  order: PinOrder<Request>;
  /** Length of the pinned prompt. */
  readonly tokens: number;
}

/**
 * Tolerates lost, duplicate and late messages: a repeated order goes to the same instance and renews the pin; an instance that reports an
 * unknown pin is ordered to remove it.
 */
export class PinDirectory<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  readonly #pins = new Map<PinId, Pin<Request>>();

  constructor(context: ConductorContext<Request>) {
    this.#context = context;
  }

  /**
   * Sends the order to the candidate with the fewest pinned tokens, and to the others in turn when an instance lacks the memory.
   * @param candidates instances that compute prompts; the one that placement selects comes first
   */
  pin(order: PinOrder<Request>, tokens: number, candidates: readonly InstanceIndex[]): void {
    const known = this.#pins.get(order.id);
    const instance = known?.instance ?? this.#leastPinned(candidates);
    if (instance === undefined) {
      const message = 'Cannot pin a prefix: no instance is left to keep it';
      this.#update(order.id, instance, { kind: 'refused', why: 'failed', message });
      return;
    }
    if (known !== undefined) known.order = order;
    else {
      const alternatives = [...new Set(candidates)].filter((each) => each !== instance);
      this.#pins.set(order.id, { instance, alternatives, refusal: undefined, order, tokens });
    }
    this.#context.emit({ kind: 'pin', instance, ...order });
  }

  #leastPinned(candidates: readonly InstanceIndex[]): InstanceIndex | undefined {
    const pinned = new Map<InstanceIndex, number>();
    for (const { instance, tokens } of this.#pins.values()) pinned.set(instance, (pinned.get(instance) ?? 0) + tokens);
    let best: InstanceIndex | undefined;
    for (const i of candidates) if (best === undefined || (pinned.get(i) ?? 0) < (pinned.get(best) ?? 0)) best = i;
    return best;
  }

  /** False when the pin is unknown. */
  unpin(id: PinId): boolean {
    const pin = this.#pins.get(id);
    if (pin === undefined) return false;
    this.#context.emit({ kind: 'unpin', instance: pin.instance, id });
    return true;
  }

  /** An instance reports the state of a pin. */
  reported(instance: InstanceIndex, id: PinId, state: PinState): void {
    const pin = this.#pins.get(id);
    if (pin?.instance !== instance) {
      if (state.kind === 'pinned') this.#context.emit({ kind: 'unpin', instance, id });
      return;
    }
    if (state.kind === 'refused' && this.#orderNext(pin, state)) return;
    if (state.kind !== 'pinned') this.#pins.delete(id);
    this.#update(id, instance, state.kind === 'refused' ? (pin.refusal ?? state) : state);
  }

  #update(id: PinId, instance: InstanceIndex | undefined, state: PinState): void {
    this.#context.emit({ kind: 'pinUpdated', id, instance, state });
  }

  /** Sends a refused order to the next instance; false when none is left. */
  #orderNext(pin: Pin<Request>, state: Refused): boolean {
    if (state.why === 'failed') return false;
    if (pin.refusal?.why !== 'memory') pin.refusal = state;
    const [next, ...alternatives] = pin.alternatives;
    if (next === undefined) return false;
    pin.instance = next;
    pin.alternatives = alternatives;
    this.#context.emit({ kind: 'pin', instance: next, ...pin.order });
    return true;
  }

  /** Reports the pins of a failed instance as unpinned. */
  instanceFailed(instance: InstanceIndex): void {
    for (const [id, pin] of [...this.#pins]) {
      pin.alternatives = pin.alternatives.filter((each) => each !== instance);
      if (pin.instance !== instance) continue;
      this.#pins.delete(id);
      this.#update(id, instance, { kind: 'unpinned' });
    }
  }
}
