// Messages between instances about lent memory, and how an instance reaches other lenders and the gManager.
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';

/** The debtor numbers its moves, at both ends. Blocks are those lent to the debtor. */
export type LendingWire =
  /** The remote attention server of the sender, before it lends blocks. */
  | { readonly kind: 'attentionServer'; readonly server: number }
  /** The same for a sender in another process: the address of its server. */
  | { readonly kind: 'attentionAddress'; readonly address: string }
  /** From the own process: the measured round trip to another process. */
  | { readonly kind: 'roundTrip'; readonly us: number }
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  /** To a creditor: open a receive buffer over these blocks. Answered by `copyPrepared` or `copyFailed`. */
  | { readonly kind: 'prepareCopy'; readonly move: number; readonly blocks: readonly number[] }
  | { readonly kind: 'copyPrepared'; readonly move: number; readonly receiveBuffer: ReceiveBufferHandle }
  /** To a creditor: send the contents of these blocks, in order, to the receive buffer. */
  | {
      readonly kind: 'copy';
      readonly move: number;
      readonly blocks: readonly number[];
      readonly receiveBuffer: ReceiveBufferHandle;
    }
  /** To the debtor: all blocks of the move have been received. */
  | { readonly kind: 'copyReceived'; readonly move: number }
  /** To the debtor: the copy has failed, or the blocks are no longer lent to it. */
  | { readonly kind: 'copyFailed'; readonly move: number }
  /** To a creditor: the move is complete or cancelled. */
  | { readonly kind: 'endCopy'; readonly move: number }
  /** To a debtor: the share of the creditor's time that attention for all debtors would take without the limit. */
  | { readonly kind: 'remoteAttentionLoad'; readonly permille: number };

export interface LenderRoutes {
  /** The lender number of this instance. */
  readonly instance: InstanceIndex;
  send(to: InstanceIndex, wire: LendingWire): void;
  sendToManager(envelope: Envelope): void;
  /** Announces this instance's remote attention server to the other lenders of the process, which reply with theirs. */
  announceServer(server: number): void;
}

/** Events from the process of an instance: messages of the gManager, and lenders that join or fail. */
export type ManagerOutput = Extract<InstanceEvent, { kind: 'lending' | 'instanceFailed' | 'creditorCut' | 'lenders' }>;

/** A lost lender may return within this time; requests that need its memory wait for it. */
export const returnMs = 30_000;
