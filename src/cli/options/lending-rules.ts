// Lending policy and times from options.

import type { RemoteAttentionKind } from '../../core/cost/remote-way.ts';
import { blocksLendable, type LendingPolicy, upToUnits } from '../../core/lending/lending-policy.ts';
import type { CoordinatorConfig } from '../../core/lending/settlement/settlement-coordinator.ts';
import { defaultLendingTimes, type LendingTimes } from '../../core/lending/times.ts';
import { pageTokens, rangeTokens } from '../../util/step.ts';

/** The lending options, as `borrowFields` of borrow-options.ts parses them. */
export interface BorrowOptions {
  /** Undefined: `dist`. */
  readonly remoteAttention?: RemoteAttentionKind | undefined;
  readonly borrow: boolean;
  readonly lendShare: number;
  readonly lowWater: number;
  readonly remoteAttentionShare: number;
  readonly lookAheadMs: number;
  readonly leaseMs: number;
  readonly borrowAhead: boolean;
  readonly settle: boolean;
  readonly settleMs: number;
  /** Smallest debt of a settled cycle, in tokens. */
  readonly settleMin: number;
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

/** Share of the KV pool in the staging buffer of settlements. */
const stagingShare = 0.05;

/** Size of the staging buffer of an instance, in whole ranges. */
export function stagingBlocksOf(blocks: number, rangeBlocks: number): number {
  return upToUnits(Math.max(1, Math.ceil(blocks * stagingShare)), { unitBlocks: rangeBlocks });
}

/** What the gManager settles, for blocks of this size. */
export function settlementOf(
  { settleMin }: BorrowOptions,
  blockTokens: number,
): Pick<CoordinatorConfig, 'blocksMin' | 'rangeBlocks'> {
  const rangeBlocks = Math.max(1, Math.ceil(rangeTokens / blockTokens));
  return { rangeBlocks, blocksMin: upToUnits(Math.ceil(settleMin / blockTokens), { unitBlocks: rangeBlocks }) };
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

/** Blocks of one attention range, which move together on live instances. */
export const rangeBlocks = rangeTokens / pageTokens;

/** A step may take hundreds of milliseconds, during which an instance handles no messages. */
const answerUs = 1_000_000;
const liveTimeouts = {
  answerUs,
  prepareUs: 3 * answerUs,
  inDoubtUs: answerUs,
  homeUs: 20 * answerUs,
  holdUs: 4 * answerUs,
};
const silentUs = 5_000_000;

export function liveTimes(rules: BorrowOptions): LendingTimes {
  return { ...timesOf(rules), ...liveTimeouts, silentUs };
}

/** Blocks that an empty memory of this size lends. */
export function lendableOf(total: number, rules: BorrowOptions): number {
  return blocksLendable({ total, available: total, lent: 0 }, livePolicy(total, rules));
}

/** The policy for a memory of this size. The smallest loan is one range. */
export function livePolicy(blocks: number, rules: BorrowOptions): LendingPolicy {
  const policy = policyOf(blocks, rules);
  const loanBlocksMin = Math.max(policy.loanBlocksMin, rangeBlocks);
  const highWaterBlocks = policy.highWaterBlocks - policy.loanBlocksMin + loanBlocksMin;
  return { ...policy, loanBlocksMin, highWaterBlocks, unitBlocks: rangeBlocks };
}
