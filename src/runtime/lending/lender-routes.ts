// How an instance reaches the others that lend, and the gManager, wherever they are.
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { LendingWire } from './lending-wire.ts';

export interface LenderRoutes {
  /** Its number among those that lend. */
  readonly instance: InstanceIndex;
  readonly send: (to: InstanceIndex, wire: LendingWire) => void;
  /** To whoever is gManager. */
  readonly sendToManager: (envelope: Envelope) => void;
  /** Every other instance of this process hears where queries over what is lent here go, and answers with its own. */
  readonly announceServer: (room: number) => void;
}

/** What instances hear of their process: a gManager's word, and who comes and goes. */
export type ManagerOutput = Extract<InstanceEvent, { kind: 'lending' | 'instanceLost' | 'creditorCut' | 'lenders' }>;

/** Whoever is gone for less than this may come back, and requests that need its memory wait. */
export const returnMs = 30_000;
