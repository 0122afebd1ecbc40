// `kvasir simulate`: replays a trace over a described cluster, through the machines that serve.
import { Command } from 'commander';
import type { Group, Groups } from '../../sim/groups.ts';
import { type LendingReport, lendingReport } from '../../sim/lending/lending-report.ts';
import { latencyMs, type Outcome } from '../../sim/outcome.ts';
import type { Retries } from '../../sim/retries.ts';
import { runChaos } from '../chaos.ts';
import { addClusterFlags, pricePerHourOf } from '../cluster-options.ts';
import { readOptions } from '../options.ts';
import { addOutputFlags } from '../run-outputs.ts';
import { addRunFlags, runAtHighestRate, runSimulation, simulationSchema } from '../simulated-run.ts';
import { printTable } from '../table.ts';

export function simulateCommand(): Command {
  const command = new Command('simulate')
    .description('replay a workload over a described cluster, through the machines that serve')
    .argument('[experiment]', 'YAML file with the names of these flags; flags win')
    .option('--check', 'every machine checks itself after every event')
    .option('--find-rate <share>', 'the highest --rate, or --speed of a trace, that keeps such a share within SLO')
    .option('--chaos', 'instead of a workload: random faults with every check on, a run for each seed from --seed on')
    .option('--seeds <n>', 'seeds of --chaos (default: 100)')
    .option('--config <file>', 'the same as the argument')
    .option('--json', 'print one JSON object');
  return addOutputFlags(addClusterFlags(addRunFlags(command))).action(
    async (experiment: string | undefined, { json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      if (experiment !== undefined) flags.config = experiment;
      // Commander gives `true` without such a flag: a config file may still say otherwise.
      for (const name of ['coalesce', 'stream', 'settle', 'borrowAhead']) if (flags[name] === true) delete flags[name];
      const options = readOptions(simulationSchema, flags);
      if (options.chaos) {
        runChaos(options, json === true);
        return;
      }
      const started = performance.now();
      const search = options.findRate === undefined ? undefined : await runAtHighestRate(options, options.findRate);
      const { outcome, lending, inside, fates } = search?.simulation ?? (await runSimulation(options));
      const report = {
        ...(search && { [search.knob]: search.found.rate, tried: search.found.tried }),
        ...reportOf(outcome, (performance.now() - started) / 1000),
        seed: options.seed,
        pricePerHour: pricePerHourOf(options),
        ...(lending === undefined ? {} : { lending: lendingReport(lending, outcome) }),
        ...(inside.faults && {
          faults: Object.fromEntries(inside.faults.injected),
          handlers: Object.fromEntries(fates.counts),
        }),
      };
      if (json === true) console.log(JSON.stringify(report));
      else printReport(report);
    },
  );
}

function reportOf(outcome: Outcome, wallSeconds: number) {
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
  readonly lending?: LendingReport;
  readonly faults?: Readonly<Record<string, number>>;
  readonly handlers?: Readonly<Record<string, number>>;
}

function printReport({
  ttftMs,
  tbtMs,
  stateHash,
  simulatedSeconds,
  wallSeconds,
  refused,
  bytesMoved,
  predictions,
  poolLoads,
  missReasons,
  replication,
  batch,
  tiers,
  pins,
  pricePerHour,
  retries,
  classes = {},
  tenants = {},
  lending,
  faults,
  handlers = {},
  seed,
  ...counts
}: ReturnType<typeof reportOf> & RunFigures) {
  printTable([counts]);
  const { byReason, ...places } = refused;
  printTable([{ refused: '', ...places, ...byReason }]);
  printTable([{ bytes: '', ...bytesMoved }]);
  if (pins.pinned + pins.refused > 0) printTable([{ pins: '', ...pins }]);
  if (batch.requests > 0) {
    const { completionMs, ...jobs } = batch;
    printTable([{ batch: '', ...jobs, completionMsMean: completionMs.mean }]);
  }
  printTable([
    { predicted: 'TTFT', ...predictions.ttft },
    { predicted: 'TBT', ...predictions.tbt },
  ]);
  printTable([{ predicted: 'output tokens', ...predictions.outputTokens }]);
  printTable([{ loads: '', ...poolLoads }]);
  if (retries !== undefined) printTable([{ retries: '', ...retries }]);
  printGroups('class', classes);
  printGroups('tenant', tenants);
  printTable([{ missedBlocks: '', ...missReasons }]);
  printTable([{ heldBlocks: '', ...replication }]);
  if (lending !== undefined) printTable([{ lending: '', ...lending }]);
  if (faults !== undefined) {
    printTable([{ injected: '', ...faults }]);
    printTable(Object.entries(handlers).map(([handler, ran]) => ({ handler, ran })));
  }
  if (tiers !== undefined) {
    printTable([{ hitTokens: '', ...tiers.hitTokens }]);
    printTable([{ tierBytes: '', ...tiers.bytes }]);
  }
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

function printGroups(what: string, groups: Readonly<Record<string, ReturnType<typeof groupFigures>>>): void {
  const rows = Object.entries(groups).map(([name, { ttftMs, tbtMs, late, ...counts }]) => ({
    [what]: name,
    ...counts,
    ...{ lateTtft: late.ttft, lateTbt: late.tbt, lateEnd: late.completion },
    ...{ ttftMsP50: ttftMs.p50, ttftMsP99: ttftMs.p99, tbtMsP99: tbtMs.p99 },
  }));
  if (rows.length > 0) printTable(rows);
}
