// Messages between instances and the gManager about lending. docs/internals/lending.md lists what a lost, duplicated,
// late or orphaned message does.
import type { BlockId, InstanceIndex, LoanNumber, ReservationNumber, SettlementId } from './ids.ts';
import type { CreditorCandidate, CreditorRefusal, LendingReport, LinkReport, Memory } from './lending-report.ts';

export type Party = 'gmanager' | InstanceIndex;

export type LendingMessage =
  // Instance to gManager.
  | { readonly kind: 'heartbeat'; readonly report: LendingReport }
  | {
      readonly kind: 'query';
      readonly query: number;
      readonly memory: Memory;
      readonly blocks: number;
      /** Memory beyond `blocks` that a waiting prompt needs, which no instance could hold alone. */
      readonly reservation: Reservation | undefined;
      /** For a running request with guaranteed memory: served before the holder of the reservation. */
      readonly urgent: boolean;
      readonly refusals: readonly CreditorRefusal[];
    }
  | { readonly kind: 'prepared'; readonly settlement: SettlementId; readonly blocks: number }
  | { readonly kind: 'declined'; readonly settlement: SettlementId }
  | { readonly kind: 'settled'; readonly settlement: SettlementId }
  /** A prepared member asks for the decision. */
  | { readonly kind: 'outcome'; readonly settlement: SettlementId }
  // gManager to instance.
  | {
      readonly kind: 'candidates';
      readonly query: number;
      readonly creditors: readonly CreditorCandidate[];
      /** The reservation that this instance holds now. */
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
  // Debtor to creditor. `closedBelow`: all loans with smaller numbers have ended.
  | {
      readonly kind: 'borrow';
      readonly loan: LoanNumber;
      readonly memory: Memory;
      readonly blocks: number;
      /** The debtor holds the reservation: the creditor holds free memory back for the rest of it. */
      readonly reserves: boolean;
      /** For a running request with guaranteed memory: served before all others. */
      readonly urgent: boolean;
      readonly closedBelow: LoanNumber;
    }
  | {
      readonly kind: 'renew';
      readonly stamp: number;
      readonly loans: readonly LoanNumber[];
      /** Loans with memory that is guaranteed to running requests: the creditor does not recall them. */
      readonly committed: readonly LoanNumber[];
      /** The reserved prompt was admitted or has ended: the creditor ends its hold. */
      readonly reservationEnded: boolean;
      readonly closedBelow: LoanNumber;
    }
  /** `blocks` undefined: the whole loan. */
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
  /** `sequence`: the creditor's last heartbeat. The gManager does not offer this creditor before a later one. */
  | { readonly kind: 'refuse'; readonly loan: LoanNumber; readonly memory: Memory; readonly sequence: number }
  | {
      readonly kind: 'renewed';
      readonly stamp: number;
      readonly loans: readonly RenewedLoan[];
      /** Loans that do not exist at the creditor. */
      readonly unknown: readonly LoanNumber[];
    }
  | { readonly kind: 'returned'; readonly loan: LoanNumber; readonly blocks: readonly BlockId[] | undefined }
  /** Return all but `keep` blocks. */
  | { readonly kind: 'recall'; readonly loan: LoanNumber; readonly keep: number }
  // In both directions: answers a message for an earlier incarnation; the envelope carries the current one.
  | { readonly kind: 'restarted' };

export interface RenewedLoan {
  readonly loan: LoanNumber;
  /** Blocks that the debtor may keep. */
  readonly keep: number;
  readonly remoteAttentionPermille: number;
}

export type LendingMessageKind = LendingMessage['kind'];

/** `fromIncarnation`: counts the starts of an instance; for the gManager, its epoch. */
export interface Envelope {
  readonly from: Party;
  readonly fromIncarnation: number;
  readonly to: Party;
  /** The incarnation that the message is for; undefined: any. */
  readonly toIncarnation: number | undefined;
  readonly message: LendingMessage;
}

/**
 * `lost`: the message or its answer did not arrive; the message is resent or given up. `duplicate`: it was received
 * before. `late`: a later message overtook it. `orphan`: it is from or for an earlier incarnation or epoch, or about
 * something unknown.
 */
export type MessageAnomaly = 'lost' | 'duplicate' | 'late' | 'orphan';

export type LendingEffect =
  | { readonly kind: 'send'; readonly envelope: Envelope }
  /** For counters: the handler of this anomaly has run. */
  | { readonly kind: 'anomaly'; readonly anomaly: MessageAnomaly; readonly message: LendingMessageKind }
  /** These rBlocks are lost with their contents: their sequences are recomputed. */
  | { readonly kind: 'rblocksLost'; readonly rblocks: readonly number[] }
  /** The creditor recalls these: move or discard their contents, then free them, without waiting for a new loan. */
  | { readonly kind: 'vacate'; readonly rblocks: readonly number[] }
  /**
   * Copy the contents to the staging buffer, and answer `staged`. They stay unchanged until they have moved or the
   * settlement is aborted.
   */
  | { readonly kind: 'stage'; readonly settlement: SettlementId; readonly rblocks: readonly number[] }
  /** The settlement was aborted: discard its staged contents. */
  | { readonly kind: 'cancelStaging'; readonly settlement: SettlementId; readonly rblocks: readonly number[] }
  /** Memory at home is free for an rBlock: write its staged contents there. */
  | { readonly kind: 'placed'; readonly rblock: number }
  /** The debtor may use these blocks of this instance from now on. */
  | {
      readonly kind: 'granted';
      readonly debtor: InstanceIndex;
      readonly memory: Memory;
      readonly blocks: readonly BlockId[];
    }
  /** The debtor may no longer use these blocks: its accesses end before the blocks are reused. */
  | {
      readonly kind: 'reclaimed';
      readonly debtor: InstanceIndex;
      readonly memory: Memory;
      readonly blocks: readonly BlockId[];
    };

/** A prompt that no instance could hold alone, and the blocks that it needs in total. */
export interface Reservation {
  readonly number: ReservationNumber;
  readonly blocks: number;
}

/** Forecast of the memory that the sequences of an instance will need. */
export interface DemandUpdate {
  readonly kind: 'demand';
  readonly blocksPerSecond: number;
  readonly aheadBlocks: number;
  /** The part that only a recall would free. */
  readonly starvedBlocks: number;
  /** The part that is guaranteed to running sequences. */
  readonly guaranteedBlocks: number;
  /** The waiting prompt that asks for, or holds, the reservation. */
  readonly reservation: Reservation | undefined;
  /** Running sequences that were admitted by a reservation: their memory stays guaranteed. */
  readonly reservedSequences: number;
  /** Counts the prompts admitted by a reservation: blocks held at that moment become guaranteed. */
  readonly reservationsAdmitted: number;
}

/** Events of an rManager. */
export type RManagerEvent =
  | { readonly kind: 'message'; readonly envelope: Envelope }
  | { readonly kind: 'tick' }
  | DemandUpdate
  /** Answer to `stage`: the contents are in the staging buffer. */
  | { readonly kind: 'staged'; readonly settlement: SettlementId }
  /** Answer to `stage`: a creditor could not be reached, or the buffer is full. */
  | { readonly kind: 'stagingFailed'; readonly settlement: SettlementId }
  /** The connection to a creditor broke, or another incarnation answers there. */
  | { readonly kind: 'creditorCut'; readonly creditor: InstanceIndex }
  /** Measured share of the creditor's step that attention for this instance took. */
  | { readonly kind: 'remoteAttentionLoad'; readonly creditor: InstanceIndex; readonly permille: number }
  /** The measured links have changed; the next heartbeat reports them. */
  | { readonly kind: 'links'; readonly links: readonly LinkReport[] }
  /** The instance ends when its requests have ended. */
  | { readonly kind: 'drain' }
  /** An instance failed with its memory, and with the blocks lent to it. */
  | { readonly kind: 'instanceFailed'; readonly instance: InstanceIndex };

export type GManagerEvent = { readonly kind: 'message'; readonly envelope: Envelope } | { readonly kind: 'tick' };
