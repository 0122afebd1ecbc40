// Orders to pin a prefix for a time, and what becomes of them.

import type { PinId } from './ids.ts';

/** What becomes of a pin. */
export type PinState =
  /** The first `tokens` tokens of the prompt stay until then. */
  | { readonly kind: 'pinned'; readonly tokens: number; readonly untilUs: number }
  /** By its length it can never be pinned there, there is no room now, or it could not be computed. */
  | { readonly kind: 'refused'; readonly why: 'length' | 'memory' | 'failed'; readonly message: string }
  /** Its time has passed, it was taken back, or it was lost. */
  | { readonly kind: 'unpinned' };

export interface PinOrder<Request> {
  readonly id: PinId;
  /** Its prompt's full blocks are what is pinned. It has a name of its own and asks for one token of output, or none. */
  readonly request: Request;
  readonly ttlUs: number;
}
