// Lending policy and times from options.

import type { LendingPolicy } from '../../core/lending/lending-policy.ts';
import { defaultLendingTimes, type LendingTimes } from '../../core/lending/times.ts';

/** The lending options, as `borrowFields` of borrow-options.ts parses them. */
export interface BorrowOptions {
  /** Of simulated instances; undefined: `dist`. */
  readonly remoteAttention?: 'dist' | 'ring' | undefined;
  readonly borrow: boolean;
  readonly lendShare: number;
  readonly lowWater: number;
  readonly remoteAttentionShare: number;
  readonly lookAheadMs: number;
  readonly leaseMs: number;
  readonly borrowAhead: boolean;
  readonly settle: boolean;
  readonly settleMs: number;
  readonly remoteCacheMs: number;
}

/** Rules of live instances. */
export interface LendingRules extends BorrowOptions {
  /** Host memory of each instance for blocks of sequences, in bytes and as a share. */
  readonly lentHostBytes?: number | undefined;
  readonly lendHost?: number | undefined;
}

/** The rules of an instance with this host memory, in bytes. */
export function withHostMemory(rules: LendingRules, hostMemory: number | undefined): LendingRules {
  return { ...rules, lentHostBytes: lentBytes({ hostMemory, lendHost: rules.lendHost }) };
}

/** Host memory for blocks of sequences; the rest holds cached blocks. */
export function lentBytes({
  hostMemory = 0,
  lendHost = 0,
}: {
  hostMemory?: number | undefined;
  lendHost?: number | undefined;
}): number {
  return Math.floor(hostMemory * lendHost);
}

/** Shares of the KV pool: hysteresis above the low-water mark, recall threshold, and smallest loan. */
const hysteresisShare = 0.03;
const recallShare = 0.01;
const loanShare = 0.01;
export function policyOf(
  blocks: number,
  { lendShare, lowWater, lookAheadMs, remoteAttentionShare, borrowAhead }: BorrowOptions,
): LendingPolicy {
  const blocksOf = (part: number) => Math.max(1, Math.ceil(blocks * part));
  const lowWaterBlocks = borrowAhead ? blocksOf(lowWater) : 0;
  const loanBlocksMin = blocksOf(loanShare);
  return {
    lentShareMax: lendShare,
    lowWaterBlocks,
    highWaterBlocks: lowWaterBlocks + loanBlocksMin + blocksOf(hysteresisShare),
    recallBlocks: Math.min(blocksOf(recallShare), lowWaterBlocks),
    lookAheadUs: borrowAhead ? lookAheadMs * 1000 : 0,
    loanBlocksMin,
    remoteAttentionPermilleMax: Math.round(remoteAttentionShare * 1000),
  };
}

/** A lease is renewed five times before it expires. */
export function timesOf({ leaseMs, settleMs, remoteCacheMs }: BorrowOptions): LendingTimes {
  const leaseUs = Math.round(leaseMs * 1000);
  return {
    ...defaultLendingTimes,
    leaseUs,
    leaseGuardUs: Math.min(defaultLendingTimes.leaseGuardUs, Math.floor(leaseUs / 10)),
    renewUs: Math.floor(leaseUs / 5),
    recallUs: Math.floor(leaseUs / 2),
    settleUs: Math.round(settleMs * 1000),
    remoteCacheUs: Math.round(remoteCacheMs * 1000),
  };
}
