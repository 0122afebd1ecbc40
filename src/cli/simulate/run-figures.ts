// The figures of a simulated run as the one object of `--json`.

import type { ClosedLoopFigures } from '../../sim/report/closed-loop-figures.ts';
import type { Group, Groups } from '../../sim/report/groups.ts';
import { latencyMs, percentilesMs } from '../../sim/report/histogram.ts';
import type { LendingReport } from '../../sim/report/lending-report.ts';
import type { InstanceWork, Outcome } from '../../sim/report/outcome.ts';
import type { Retries } from '../../sim/workload/retries.ts';

export function reportOf(outcome: Outcome, wallSeconds: number) {
  const { requests, completedRequests: completed, promptTokens, cachedTokens, withinSlo } = outcome;
  const simulatedSeconds = outcome.endUs / 1e6;
  // Batch jobs may continue after all other requests have ended.
  const servedSeconds = outcome.batch.requests === 0 ? simulatedSeconds : outcome.servedUntilUs / 1e6;
  const missedBlocks = Object.values(outcome.missReasons).reduce((sum, blocks) => sum + blocks, 0);
  return {
    requests,
    completed,
    refused: { ...outcome.refused, byReason: outcome.refusedByReason },
    wastedPrefillTokens: outcome.wastedPrefillTokens,
    ...(outcome.closedLoop && { closedLoop: closedLoopFigures(outcome.closedLoop) }),
    ...(outcome.retries && { retries: retryFigures(outcome.retries) }),
    ttftMs: latencyMs(outcome.ttftUs),
    tbtMs: latencyMs(outcome.tbtUs),
    tpotMs: latencyMs(outcome.tpotUs),
    queueMs: latencyMs(outcome.queueUs),
    e2eMs: latencyMs(outcome.e2eUs),
    percentiles: { ttftMs: percentilesMs(outcome.ttftUs), tbtMs: percentilesMs(outcome.tbtUs) },
    withinSlo,
    goodputRequestsPerSecond: ratio(withinSlo, servedSeconds),
    predictions: {
      ttft: outcome.predictedTtft.figures,
      tbt: outcome.predictedTbt.figures,
      outputTokens: outcome.predictedOutputs.counts,
    },
    poolLoads: outcome.swing.figures,
    ...groupsOf(outcome, simulatedSeconds),
    bytesMoved: outcome.bytesMoved,
    hitRatioBlocks: ratio(outcome.hitBlocks, outcome.hitBlocks + missedBlocks),
    hitRatioTokens: ratio(cachedTokens, promptTokens),
    missReasons: outcome.missReasons,
    replication: outcome.replication,
    tiers: outcome.tiers,
    steps: outcome.steps,
    decodeTokens: outcome.outputTokens,
    prefillTokens: promptTokens - cachedTokens,
    preemptions: outcome.preemptions,
    inlinePrefills: outcome.inlinePrefills,
    groupPrefills: outcome.groupPrefills,
    migration: outcome.migration,
    ...(outcome.sparse && { sparse: outcome.sparse }),
    roleSwitches: outcome.roleSwitches,
    pins: outcome.pins,
    batch: {
      requests: outcome.batch.requests,
      completed: outcome.batch.completed,
      decodeTokens: outcome.batch.outputTokens,
      decodeTokensPerSecond: ratio(outcome.batch.outputTokens, simulatedSeconds),
      completionMs: latencyMs(outcome.batch.completionUs),
    },
    simulatedSeconds,
    wallSeconds,
    stateHash: outcome.stateHash,
  };
}

function closedLoopFigures(loop: ClosedLoopFigures) {
  const { clients, requests, seconds, requestsPerSecond, outputTokensPerSecond, ttftUs } = loop;
  return { clients, requests, seconds, requestsPerSecond, outputTokensPerSecond, ttftMs: latencyMs(ttftUs) };
}

function retryFigures({ returns, completed, gaveUp, waitedMsMean }: Retries) {
  return { came: returns, completed, gaveUp, waitedMsMean };
}

/** By class and by tenant, if requests name them. */
function groupsOf({ classes, tenants }: Outcome, seconds: number) {
  const figures = (groups: Groups) =>
    Object.fromEntries([...groups.all].map(([name, group]) => [name, groupFigures(group, seconds)]));
  return {
    ...(classes.all.size === 0 ? {} : { classes: figures(classes) }),
    ...(tenants.all.size === 0 ? {} : { tenants: figures(tenants) }),
  };
}

export type GroupFigures = ReturnType<typeof groupFigures>;

function groupFigures({ ttftUs, tbtUs, late, ...counts }: Group, seconds: number) {
  const goodputRequestsPerSecond = ratio(counts.withinSlo, seconds);
  return { ...counts, goodputRequestsPerSecond, late, ttftMs: latencyMs(ttftUs), tbtMs: latencyMs(tbtUs) };
}

function ratio(part: number, all: number): number {
  return all === 0 ? 0 : part / all;
}

/** Figures of a run beside those of its requests. */
export interface RunFigures {
  /** Options of the run by name, defaults included. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly instances: readonly (InstanceWork & { readonly name: string })[];
  readonly seed: number;
  readonly pricePerHour: number | undefined;
  readonly lending?: LendingReport | undefined;
  /** Of a run that searched for it: the highest rate (of a trace: speed) with this share of the requests within SLO. */
  readonly highestRate?:
    | {
        readonly parameter: 'rate' | 'speed';
        readonly share: number;
        readonly rate: number;
        /** A rate above it that has a smaller share. */
        readonly above: number;
        readonly tried: number;
      }
    | undefined;
  readonly faults?: Readonly<Record<string, number>> | undefined;
  readonly handlers?: Readonly<Record<string, number>> | undefined;
}
