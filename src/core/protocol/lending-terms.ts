// Words that everything about lending shares: who, which memory, and what an instance says of its own.

import type { InstanceIndex } from './ids.ts';

/** Where a lent block lies at its creditor. */
export type Memory = 'device' | 'host';

export const memories: readonly Memory[] = ['device', 'host'];

/** Blocks of one memory of `creditor` that its reporter holds. */
export interface DebtTotal {
  readonly creditor: InstanceIndex;
  readonly memory: Memory;
  readonly blocks: number;
}

/** Blocks of one memory of its reporter that `debtor` holds. */
export interface LoanTotal {
  readonly debtor: InstanceIndex;
  readonly memory: Memory;
  readonly blocks: number;
}

/** What one heartbeat says. It is complete: the last one alone tells all there is to know. */
export interface LendingReport {
  /** Heartbeats of one life are numbered from 1. */
  readonly sequence: number;
  readonly lendable: Readonly<Record<Memory, number>>;
  /** What it could lend besides, were all its own sequences over. */
  readonly lendableLater: Readonly<Record<Memory, number>>;
  /** What it has lent and may call back. */
  readonly recallable: Readonly<Record<Memory, number>>;
  /** A prompt waits here for memory that no instance has alone. */
  readonly reservation: number | undefined;
  readonly debts: readonly DebtTotal[];
  readonly loans: readonly LoanTotal[];
}

/** An instance that may lend, as offered to a debtor. */
export interface Candidate {
  readonly instance: InstanceIndex;
  readonly incarnation: number;
  /** Blocks thought to be lendable. */
  readonly blocks: number;
}

/** A creditor said no: what it knew then. */
export interface Refusal {
  readonly instance: InstanceIndex;
  readonly incarnation: number;
  readonly memory: Memory;
  /** Its last heartbeat before it refused. */
  readonly sequence: number;
}
