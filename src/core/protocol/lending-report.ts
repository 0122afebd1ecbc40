// Terms that lending messages share: memories, totals, heartbeat reports, candidates and refusals.

import type { InstanceIndex } from './ids.ts';

/** Memory of the creditor in which a lent block lies. */
export type Memory = 'device' | 'host';

export const memories: readonly Memory[] = ['device', 'host'];

/** Blocks of one memory of `creditor` that the reporting instance holds. */
export interface DebtTotal {
  readonly creditor: InstanceIndex;
  readonly memory: Memory;
  readonly blocks: number;
}

/** Blocks of one memory of the reporting instance that `debtor` holds. */
export interface LoanTotal {
  readonly debtor: InstanceIndex;
  readonly memory: Memory;
  readonly blocks: number;
}

/** How pages and queries travel: in one process, in memory that two processes share, over RDMA or tcp. */
export const linkTransports = ['thread', 'shared', 'rdma', 'tcp'] as const;
export type LinkTransport = (typeof linkTransports)[number];

/** The link to another instance, as the reporting one measured it. Figures without a recent measurement are absent. */
export interface LinkReport {
  readonly peer: InstanceIndex;
  readonly transport?: LinkTransport | undefined;
  /** Of a small message and its answer. */
  readonly roundTripUs?: number | undefined;
  readonly bytesPerSecond?: number | undefined;
}

/** Contents of a heartbeat. Each heartbeat is complete: the last one alone describes the instance. */
export interface LendingReport {
  /** Counts the heartbeats of one incarnation from 1. */
  readonly sequence: number;
  readonly lendable: Readonly<Record<Memory, number>>;
  /** Additional blocks that it could lend once its own sequences end. */
  readonly lendableLater: Readonly<Record<Memory, number>>;
  /** Lent blocks that it may recall. */
  readonly recallable: Readonly<Record<Memory, number>>;
  /** The waiting prompt here that needs memory beyond every single instance. */
  readonly reservation: number | undefined;
  readonly debts: readonly DebtTotal[];
  readonly loans: readonly LoanTotal[];
  /** Blocks whose contents a settlement could bring home now. Undefined in heartbeats of earlier releases. */
  readonly stagingBlocks?: number | undefined;
  /** Undefined in heartbeats of earlier releases: nothing is measured. */
  readonly links?: readonly LinkReport[] | undefined;
}

/** A possible creditor, as offered to a debtor. */
export interface CreditorCandidate {
  readonly instance: InstanceIndex;
  readonly incarnation: number;
  /** Blocks expected to be lendable. */
  readonly blocks: number;
}

/** A creditor's refusal, for the gManager. */
export interface CreditorRefusal {
  readonly instance: InstanceIndex;
  readonly incarnation: number;
  readonly memory: Memory;
  /** The creditor's last heartbeat before the refusal. */
  readonly sequence: number;
}
