// What a turn of an instance's loop brought, sorted by the gateways whose requests it is about.

import type { PinId, RequestId } from '../../core/protocol/ids.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { StepTrace } from '../threads/thread-protocol.ts';

/** What a turn has for one gateway. */
export interface OwnTurn {
  readonly events: [RequestId, GenerationEvent][];
  readonly prefilled: RequestId[];
  readonly released: [RequestId, string][];
  readonly pins: [PinId, PinState][];
  readonly steps: StepTrace[];
}

export class GatewayTurns<Gateway> {
  readonly #turns = new Map<Gateway, OwnTurn>();

  of(gateway: Gateway): OwnTurn {
    const known = this.#turns.get(gateway);
    if (known !== undefined) return known;
    const turn: OwnTurn = { events: [], prefilled: [], released: [], pins: [], steps: [] };
    this.#turns.set(gateway, turn);
    return turn;
  }

  /** Each gateway that wants to hear of steps has those with rows of its own requests. @param ownerOf undefined: nobody has to know */
  addSteps(
    steps: readonly StepTrace[],
    ownerOf: (here: RequestId) => { readonly gateway: Gateway; readonly id: RequestId } | undefined,
  ): void {
    for (const { rows, ...step } of steps) {
      const own = new Map<Gateway, StepTrace['rows'][number][]>();
      for (const [here, from, count] of rows) {
        const owner = ownerOf(here);
        if (owner === undefined) continue;
        const list = own.get(owner.gateway) ?? [];
        list.push([owner.id, from, count]);
        own.set(owner.gateway, list);
      }
      for (const [gateway, list] of own) this.of(gateway).steps.push({ ...step, rows: list });
    }
  }

  [Symbol.iterator](): Iterator<[Gateway, OwnTurn]> {
    return this.#turns.entries();
  }
}
