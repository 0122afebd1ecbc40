// What instances tell each other about memory that they lend.
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';

/** Moves are numbered by their debtor: whoever asks for them, or hears of them. Blocks are those that were lent to it. */
export type LendingWire =
  /** Where queries over what we lend go: before anything is lent. */
  | { readonly kind: 'room'; readonly room: number }
  /** The same of an instance in another process, as its links say it: where its room is reached. */
  | { readonly kind: 'door'; readonly address: string }
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  /** To a creditor: contents are to come to these blocks. Answered by `expected` or `broken`. */
  | { readonly kind: 'expect'; readonly move: number; readonly blocks: readonly number[] }
  | { readonly kind: 'expected'; readonly move: number; readonly landing: ReceiveBufferHandle }
  /** To a creditor: the contents of these blocks go to the landing, whose places they have in order. */
  | {
      readonly kind: 'copy';
      readonly move: number;
      readonly blocks: readonly number[];
      readonly landing: ReceiveBufferHandle;
    }
  /** To the debtor: all is where it was to go. */
  | { readonly kind: 'arrived'; readonly move: number }
  /** To the debtor: the blocks are not lent to it any more. */
  | { readonly kind: 'broken'; readonly move: number }
  /** To a creditor: nobody wants what is under way of this move. */
  | { readonly kind: 'drop'; readonly move: number }
  /** To a debtor: its guests take all that they may of a creditor's time, and would take this share. */
  | { readonly kind: 'remoteAttentionLoad'; readonly permille: number };
