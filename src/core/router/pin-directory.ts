// The conductor's pins: where each prefix that is kept for a time is kept.
import type { ConductorEffect } from '../protocol/effects.ts';
import type { InstanceIndex, PinId } from '../protocol/ids.ts';
import type { PinOrder, PinState } from '../protocol/pin-order.ts';

type Refused = Extract<PinState, { readonly kind: 'refused' }>;

interface Entry<Request> {
  instance: InstanceIndex;
  /** Others that could keep it where this one does not. */
  others: readonly InstanceIndex[];
  /** What somebody has said who may have room later; else what the last one has said. */
  refusal: Refused | undefined;
  order: PinOrder<Request>;
  /** Of the prompt that is pinned. */
  readonly tokens: number;
  /** When it passes, as far as it was told. */
  untilUs: number | undefined;
}

/** Lost, doubled and late words: an order that is repeated goes to the same instance and renews; what an instance tells of an unknown pin is taken back. */
export class PinDirectory<Request> {
  readonly #pins = new Map<PinId, Entry<Request>>();
  readonly #push: (effect: ConductorEffect<Request>) => void;

  constructor(push: (effect: ConductorEffect<Request>) => void) {
    this.#push = push;
  }

  /**
   * @param candidates instances that compute prompts, where the prompt would come first before others: of those the one with the least pinned is taken, and
   * the others in turn where it has not the memory
   */
  pin(order: PinOrder<Request>, tokens: number, candidates: readonly InstanceIndex[]): void {
    const instance = this.#pins.get(order.id)?.instance ?? this.#leastPinned(candidates);
    if (instance === undefined) {
      const message = 'Cannot pin a prefix: no instance is left to keep it';
      this.#push({ kind: 'pinUpdated', id: order.id, instance, state: { kind: 'refused', why: 'failed', message } });
      return;
    }
    const known = this.#pins.get(order.id);
    if (known !== undefined) known.order = order;
    else {
      const others = [...new Set(candidates)].filter((each) => each !== instance);
      this.#pins.set(order.id, { instance, others, refusal: undefined, order, tokens, untilUs: undefined });
    }
    this.#push({ kind: 'pin', instance, ...order });
  }

  #leastPinned(candidates: readonly InstanceIndex[]): InstanceIndex | undefined {
    const pinned = new Map<InstanceIndex, number>();
    for (const { instance, tokens } of this.#pins.values()) pinned.set(instance, (pinned.get(instance) ?? 0) + tokens);
    let best: InstanceIndex | undefined;
    for (const i of candidates) if (best === undefined || (pinned.get(i) ?? 0) < (pinned.get(best) ?? 0)) best = i;
    return best;
  }

  /** False when it is not known. */
  unpin(id: PinId): boolean {
    const entry = this.#pins.get(id);
    if (entry === undefined) return false;
    this.#push({ kind: 'unpin', instance: entry.instance, id });
    return true;
  }

  hear(instance: InstanceIndex, id: PinId, state: PinState): void {
    const entry = this.#pins.get(id);
    if (entry?.instance !== instance) {
      if (state.kind === 'pinned') this.#push({ kind: 'unpin', instance, id });
      return;
    }
    if (state.kind === 'refused' && this.#refused(entry, state)) return;
    if (state.kind === 'pinned') entry.untilUs = state.untilUs;
    else this.#pins.delete(id);
    const told = state.kind === 'refused' ? (entry.refusal ?? state) : state;
    this.#push({ kind: 'pinUpdated', id, instance, state: told });
  }

  /** False where nobody else is left to ask. */
  #refused(entry: Entry<Request>, state: Refused): boolean {
    if (state.why === 'failed') return false;
    if (entry.refusal?.why !== 'memory') entry.refusal = state;
    const [next, ...others] = entry.others;
    if (next === undefined) return false;
    entry.instance = next;
    entry.others = others;
    this.#push({ kind: 'pin', instance: next, ...entry.order });
    return true;
  }

  /** What it kept is gone. */
  lose(instance: InstanceIndex): void {
    for (const [id, entry] of [...this.#pins]) {
      entry.others = entry.others.filter((each) => each !== instance);
      if (entry.instance !== instance) continue;
      this.#pins.delete(id);
      this.#push({ kind: 'pinUpdated', id, instance, state: { kind: 'unpinned' } });
    }
  }

  /** Where it is and when it passes, where it has been told; undefined: it is not known. */
  find(id: PinId): Readonly<Pick<Entry<Request>, 'instance' | 'untilUs'>> | undefined {
    return this.#pins.get(id);
  }

  get size(): number {
    return this.#pins.size;
  }
}
