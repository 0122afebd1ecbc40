// Orders to pin a prefix in KV memory for a time, and the states of a pin.

import type { PinId } from './ids.ts';

export type PinState =
  /** The first `tokens` tokens of the prompt stay in memory until `untilUs`. */
  | { readonly kind: 'pinned'; readonly tokens: number; readonly untilUs: number }
  /**
   * length: the prompt exceeds the pin memory; memory: other pins occupy it; failed: the prompt could not be computed.
   */
  | { readonly kind: 'refused'; readonly why: 'length' | 'memory' | 'failed'; readonly message: string }
  /** The pin has expired, was removed, or was lost with its instance. */
  | { readonly kind: 'unpinned' };

export interface PinOrder<Request> {
  readonly id: PinId;
  /** The full blocks of its prompt are pinned. The request has an id of its own and at most one output token. */
  readonly request: Request;
  readonly ttlUs: number;
}
