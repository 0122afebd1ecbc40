// What instances and the gManager say to one another about lending. docs/internals/lending.md has the table of what a lost, doubled, late or orphaned one does.
import type { BlockId, InstanceIndex, LoanNumber, ReservationNumber, SettlementId } from './ids.ts';
import type { Candidate, LendingReport, Memory, Refusal } from './lending-terms.ts';

export type Party = 'gmanager' | InstanceIndex;

export type LendingMessage =
  // Instance to gManager.
  | { readonly kind: 'heartbeat'; readonly report: LendingReport }
  | {
      readonly kind: 'query';
      readonly query: number;
      readonly memory: Memory;
      readonly blocks: number;
      /** What it needs when it has the turn, for a prompt that no instance could hold alone: more than `blocks`. */
      readonly reservation: Reservation | undefined;
      /** One runs that was promised memory: it is served before whoever has the turn. */
      readonly urgent: boolean;
      readonly refusals: readonly Refusal[];
    }
  | { readonly kind: 'prepared'; readonly settlement: SettlementId; readonly blocks: number }
  | { readonly kind: 'declined'; readonly settlement: SettlementId }
  | { readonly kind: 'settled'; readonly settlement: SettlementId }
  /** In doubt: what was decided? */
  | { readonly kind: 'outcome'; readonly settlement: SettlementId }
  // gManager to instance.
  | {
      readonly kind: 'candidates';
      readonly query: number;
      readonly creditors: readonly Candidate[];
      /** It has the turn, for that prompt. */
      readonly reservation: ReservationNumber | undefined;
    }
  | {
      readonly kind: 'prepare';
      readonly settlement: SettlementId;
      readonly creditor: InstanceIndex;
      readonly memory: Memory;
      readonly blocks: number;
    }
  | { readonly kind: 'commit'; readonly settlement: SettlementId }
  | { readonly kind: 'abort'; readonly settlement: SettlementId }
  // Debtor to creditor. `closedBelow`: loans of smaller numbers are over for good.
  | {
      readonly kind: 'borrow';
      readonly loan: LoanNumber;
      readonly memory: Memory;
      readonly blocks: number;
      /** The debtor has the turn: what it does not get now is held for it for a while. */
      readonly reserves: boolean;
      /** It does so for a prompt that runs: before all others. */
      readonly urgent: boolean;
      readonly closedBelow: LoanNumber;
    }
  | {
      readonly kind: 'renew';
      readonly stamp: number;
      readonly loans: readonly LoanNumber[];
      /** Of those, what a prompt that runs was promised: it is not recalled. */
      readonly committed: readonly LoanNumber[];
      /** What it gathered for was let in, or is gone: no room is made for it any more. */
      readonly reservationEnded: boolean;
      readonly closedBelow: LoanNumber;
    }
  /** `blocks` undefined: all of the loan. */
  | {
      readonly kind: 'return';
      readonly loan: LoanNumber;
      readonly blocks: readonly BlockId[] | undefined;
      readonly closedBelow: LoanNumber;
    }
  // Creditor to debtor.
  | {
      readonly kind: 'lend';
      readonly loan: LoanNumber;
      readonly blocks: readonly BlockId[];
      readonly leaseUs: number;
      readonly remoteAttentionPermille: number;
    }
  /** `sequence` of the creditor's last heartbeat: it is not to be offered before a later one. */
  | { readonly kind: 'refuse'; readonly loan: LoanNumber; readonly memory: Memory; readonly sequence: number }
  | {
      readonly kind: 'renewed';
      readonly stamp: number;
      readonly loans: readonly RenewedLoan[];
      /** Loans that the creditor does not know (any more). */
      readonly unknown: readonly LoanNumber[];
    }
  | { readonly kind: 'returned'; readonly loan: LoanNumber; readonly blocks: readonly BlockId[] | undefined }
  /** Give back all but `keep` blocks. */
  | { readonly kind: 'recall'; readonly loan: LoanNumber; readonly keep: number }
  // Either way: answers what was meant for an earlier life. The envelope tells the new one.
  | { readonly kind: 'restarted' };

export interface RenewedLoan {
  readonly loan: LoanNumber;
  /** Blocks that the debtor may keep. */
  readonly keep: number;
  readonly remoteAttentionPermille: number;
}

export type LendingMessageKind = LendingMessage['kind'];

/** `life` of an instance: which of its starts this is, growing; of the gManager: its epoch. */
export interface Envelope {
  readonly from: Party;
  readonly fromIncarnation: number;
  readonly to: Party;
  /** The life that it is meant for; undefined: any. */
  readonly toIncarnation: number | undefined;
  readonly message: LendingMessage;
}

/**
 * `lost`: it, or its answer, did not come: said again or given up. `doubled`: heard before. `late`: overtaken by what came after.
 * `orphan`: of or for an earlier life or epoch, or about what is not known.
 */
export type MessageFate = 'lost' | 'doubled' | 'late' | 'orphan';

export type LendingEffect =
  | { readonly kind: 'send'; readonly envelope: Envelope }
  /** For counts and the log: a message met one of these fates, and the handler for that ran. */
  | { readonly kind: 'met'; readonly fate: MessageFate; readonly message: LendingMessageKind }
  /** These rBlocks are gone, with their contents: whoever held them rebuilds. They are no longer known. */
  | { readonly kind: 'lost'; readonly rblocks: readonly number[] }
  /** The creditor wants these back: move or drop their contents, then free them. Never wait for a loan to do so. */
  | { readonly kind: 'vacate'; readonly rblocks: readonly number[] }
  /** Copy the contents of these to the staging buffer, and say `fetched`. They change no more until they have moved or the settlement was aborted. */
  | { readonly kind: 'fetch'; readonly settlement: SettlementId; readonly rblocks: readonly number[] }
  /** The settlement came to nothing: no contents of it are wanted in the staging buffer. */
  | { readonly kind: 'cancelFetch'; readonly settlement: SettlementId; readonly rblocks: readonly number[] }
  /** An rBlock has a place at home: write its staged contents there. */
  | { readonly kind: 'placed'; readonly rblock: number }
  /** An instance may use these blocks of ours from now on. */
  | {
      readonly kind: 'granted';
      readonly debtor: InstanceIndex;
      readonly memory: Memory;
      readonly blocks: readonly BlockId[];
    }
  /** It may no more: whatever it still does there must end before they are used again. */
  | {
      readonly kind: 'reclaimed';
      readonly debtor: InstanceIndex;
      readonly memory: Memory;
      readonly blocks: readonly BlockId[];
    };

/** A prompt that no instance could hold alone, and blocks that it needs in all. */
export interface Reservation {
  readonly number: ReservationNumber;
  readonly blocks: number;
}

/** What sequences are going to need. */
export interface DemandUpdate {
  readonly kind: 'demand';
  readonly blocksPerSecond: number;
  readonly aheadBlocks: number;
  /** Of that, what nothing but a recall would free. */
  readonly starvedBlocks: number;
  /** Of that, what is promised to those that run. */
  readonly committedBlocks: number;
  /** What waits for its turn, or has it. */
  readonly reservation: Reservation | undefined;
  /** How many that run were gathered for: what they were promised stays theirs. */
  readonly reservedSequences: number;
  /** How often one was let in: what is held then was promised to it. */
  readonly reservationsAdmitted: number;
}

/** What an rManager hears. */
export type RManagerEvent =
  | { readonly kind: 'message'; readonly envelope: Envelope }
  | { readonly kind: 'tick' }
  | DemandUpdate
  /** Answer to `fetch`. */
  | { readonly kind: 'fetched'; readonly settlement: SettlementId }
  /** Answer to `fetch`: a creditor could not be reached. */
  | { readonly kind: 'fetchFailed'; readonly settlement: SettlementId }
  /** The connection to a creditor broke, or it is not the one that lent. */
  | { readonly kind: 'creditorCut'; readonly creditor: InstanceIndex }
  /** The executor measured what share of the creditor's step its guests' work for us took. */
  | { readonly kind: 'remoteAttentionLoad'; readonly creditor: InstanceIndex; readonly permille: number }
  /** An instance is gone with all it had, and with all that was lent to it. */
  | { readonly kind: 'instanceLost'; readonly instance: InstanceIndex };

export type GManagerEvent = { readonly kind: 'message'; readonly envelope: Envelope } | { readonly kind: 'tick' };
