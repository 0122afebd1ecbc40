// What instances lend and borrow by: how blocks are dealt out, and when; no flag is read here.

import type { LendingPolicy } from '../../core/lending/lending-policy.ts';
import { defaultLendingTimes, type LendingTimes } from '../../core/lending/times.ts';
import type { BorrowOptions } from './borrow-options.ts';

/** Of instances that serve. */
export interface LendingRules extends BorrowOptions {
  /** Host memory of each for blocks of sequences, its own and others', and that as a share; none unless given. */
  readonly lentHostBytes?: number | undefined;
  readonly lendHost?: number | undefined;
}

/** Of an instance that has so much of it. */
export function withHostMemory(rules: LendingRules, hostMemory: number | undefined): LendingRules {
  return { ...rules, lentHostBytes: lentBytes({ hostMemory, lendHost: rules.lendHost }) };
}

/** Of the host memory of an instance, what is for blocks of sequences; the rest is for cached ones. */
export function lentBytes({
  hostMemory = 0,
  lendHost = 0,
}: {
  hostMemory?: number | undefined;
  lendHost?: number | undefined;
}): number {
  return Math.floor(hostMemory * lendHost);
}

/** Of an instance's memory: what is given back beyond the low-water mark, what is recalled below, and a loan at least. */
const highWaterBeyond = 0.03;
const recallShare = 0.01;
const loanShare = 0.01;
export function policyOf(
  blocks: number,
  { lendShare, lowWater, lookAheadMs, remoteAttentionShare, borrowAhead }: BorrowOptions,
): LendingPolicy {
  const of = (part: number) => Math.max(1, Math.ceil(blocks * part));
  const lowWaterBlocks = borrowAhead ? of(lowWater) : 0;
  const loanBlocksMin = of(loanShare);
  return {
    lentShareMax: lendShare,
    lowWaterBlocks,
    highWaterBlocks: lowWaterBlocks + loanBlocksMin + of(highWaterBeyond),
    recallBlocks: Math.min(of(recallShare), lowWaterBlocks),
    lookAheadUs: borrowAhead ? lookAheadMs * 1000 : 0,
    loanBlocksMin,
    remoteAttentionPermilleMax: Math.round(remoteAttentionShare * 1000),
  };
}

/** A lease is renewed five times before it ends. */
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
