// The figures of a simulated run: as the one object of `--json`, and as tables for people.

import type { LendingReport } from '../../sim/lending/lending-report.ts';
import type { Group, Groups } from '../../sim/report/groups.ts';
import { latencyMs, type Outcome } from '../../sim/report/outcome.ts';
import type { Retries } from '../../sim/workload/retries.ts';
import { printTable } from './table.ts';

export function reportOf(outcome: Outcome, wallSeconds: number) {
  const { requests, completedRequests: completed, promptTokens, cachedTokens, withinSlo } = outcome;
  const simulatedSeconds = outcome.endUs / 1e6;
  // Batch jobs may go on after all others have been served.
  const servedSeconds = outcome.batch.requests === 0 ? simulatedSeconds : outcome.servedUntilUs / 1e6;
  const missedBlocks = Object.values(outcome.missReasons).reduce((sum, blocks) => sum + blocks, 0);
  return {
    requests,
    completed,
    refused: { ...outcome.refused, byReason: outcome.refusedByReason },
    wastedPrefillTokens: outcome.wastedPrefillTokens,
    ...(outcome.retries && { retries: retryFigures(outcome.retries) }),
    ttftMs: latencyMs(outcome.ttftUs),
    tbtMs: latencyMs(outcome.tbtUs),
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

function retryFigures({ came, completed, gaveUp, waitedMsMean }: Retries) {
  return { came, completed, gaveUp, waitedMsMean };
}

/** By class and by tenant, where requests name them. */
function groupsOf({ classes, tenants }: Outcome, seconds: number) {
  const figures = (groups: Groups) =>
    Object.fromEntries([...groups.all].map(([name, group]) => [name, groupFigures(group, seconds)]));
  return {
    ...(classes.all.size === 0 ? {} : { classes: figures(classes) }),
    ...(tenants.all.size === 0 ? {} : { tenants: figures(tenants) }),
  };
}

function groupFigures({ ttftUs, tbtUs, late, ...counts }: Group, seconds: number) {
  const goodputRequestsPerSecond = ratio(counts.withinSlo, seconds);
  return { ...counts, goodputRequestsPerSecond, late, ttftMs: latencyMs(ttftUs), tbtMs: latencyMs(tbtUs) };
}

function ratio(part: number, all: number): number {
  return all === 0 ? 0 : part / all;
}

/** What the report has beside what came of the requests. */
interface RunFigures {
  readonly seed: number;
  readonly pricePerHour: number | undefined;
  readonly lending?: LendingReport | undefined;
  readonly faults?: Readonly<Record<string, number>> | undefined;
  readonly handlers?: Readonly<Record<string, number>> | undefined;
}

type Report = ReturnType<typeof reportOf> & RunFigures;

export function printReport({
  ttftMs,
  tbtMs,
  refused,
  predictions,
  poolLoads,
  retries,
  classes = {},
  tenants = {},
  bytesMoved,
  missReasons,
  replication,
  tiers,
  pins,
  batch,
  migration,
  lending,
  faults,
  handlers,
  ...figures
}: Report): void {
  const { stateHash, seed, simulatedSeconds, wallSeconds, pricePerHour, ...counts } = figures;
  printTable([counts]);
  const { byReason, ...places } = refused;
  printTable([{ refused: '', ...places, ...byReason }]);
  printPredictions(predictions, poolLoads);
  if (retries !== undefined) printTable([{ retries: '', ...retries }]);
  printGroups('class', classes);
  printGroups('tenant', tenants);
  printCaches({ bytesMoved, missReasons, replication, tiers, pins });
  printFeatures({ batch, migration, lending, faults, handlers });
  printTable([
    { ms: 'TTFT', ...ttftMs },
    { ms: 'TBT', ...tbtMs },
  ]);
  printTable([
    {
      ...{ simulatedSeconds, wallSeconds: Number(wallSeconds.toFixed(2)), pricePerHour: pricePerHour ?? '' },
      ...{ seed, stateHash },
    },
  ]);
}

/** Only requests that have an SLO are predicted. */
function printPredictions(predictions: Report['predictions'], poolLoads: Report['poolLoads']): void {
  if (predictions.ttft.requests === 0) return;
  printTable([
    { predicted: 'TTFT', ...predictions.ttft },
    { predicted: 'TBT', ...predictions.tbt },
  ]);
  printTable([{ predicted: 'output tokens', ...predictions.outputTokens }]);
  printTable([{ loads: '', ...poolLoads }]);
}

function printCaches({
  bytesMoved,
  missReasons,
  replication,
  tiers,
  pins,
}: Pick<Report, 'bytesMoved' | 'missReasons' | 'replication' | 'tiers' | 'pins'>): void {
  printTable([{ bytes: '', ...bytesMoved }]);
  printTable([{ missedBlocks: '', ...missReasons }]);
  printTable([{ heldBlocks: '', ...replication }]);
  if (tiers !== undefined) {
    printTable([{ hitTokens: '', ...tiers.hitTokens }]);
    printTable([{ tierBytes: '', ...tiers.bytes }]);
  }
  if (pins.pinned + pins.refused > 0) printTable([{ pins: '', ...pins }]);
}

function printFeatures({
  batch,
  migration,
  lending,
  faults,
  handlers = {},
}: Pick<Report, 'batch' | 'migration' | 'lending' | 'faults' | 'handlers'>): void {
  if (batch.requests > 0) {
    const { completionMs, ...jobs } = batch;
    printTable([{ batch: '', ...jobs, completionMsMean: completionMs.mean }]);
  }
  if (migration !== undefined) printTable([{ migration: '', ...migration }]);
  if (lending !== undefined) printTable([{ lending: '', ...lending }]);
  if (faults === undefined) return;
  printTable([{ injected: '', ...faults }]);
  printTable(Object.entries(handlers).map(([handler, ran]) => ({ handler, ran })));
}

function printGroups(what: string, groups: Readonly<Record<string, ReturnType<typeof groupFigures>>>): void {
  const rows = Object.entries(groups).map(([name, { ttftMs, tbtMs, late, ...counts }]) => ({
    [what]: name,
    ...counts,
    ...{ lateTtft: late.ttft, lateTbt: late.tbt, lateEnd: late.completion },
    ...{ ttftMsP50: ttftMs.p50, ttftMsP99: ttftMs.p99, tbtMsP99: tbtMs.p99 },
  }));
  if (rows.length > 0) printTable(rows);
}
