// Pins of an instance that serves several gateways: whose each one is.

import type { PinId } from '../../core/protocol/ids.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';

/** By the names that pins have here: names of gateways' own may be the same. */
export class GatewayPins<Gateway> {
  readonly #pins = new Map<PinId, { readonly gateway: Gateway; readonly id: PinId }>();

  add(here: PinId, gateway: Gateway, id: PinId): void {
    this.#pins.set(here, { gateway, id });
  }

  /** Whom it is to be told, and as what. */
  heard(here: PinId, { kind }: PinState): { readonly gateway: Gateway; readonly id: PinId } | undefined {
    const pin = this.#pins.get(here);
    if (kind !== 'pinned') this.#pins.delete(here);
    return pin;
  }

  /** Names of a gateway's pins here: nobody has them any more. */
  lose(gateway: Gateway): readonly PinId[] {
    const lost = [...this.#pins].flatMap(([here, pin]) => (pin.gateway === gateway ? [here] : []));
    for (const here of lost) this.#pins.delete(here);
    return lost;
  }
}
