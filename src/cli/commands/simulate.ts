// `kvasir simulate`: replays a trace over a described cluster, through the machines that serve.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { placementKinds } from '../../policy/placement/placement.ts';
import { latencyMs, type Outcome } from '../../sim/outcome.ts';
import { Simulation } from '../../sim/simulation.ts';
import { presetNames } from '../../trace/workload/presets.ts';
import { runChaos } from '../chaos.ts';
import { addClusterFlags, bytesOf, clusterFields, instanceNames, instanceSpecs } from '../cluster-options.ts';
import { numeric, readOptions } from '../options.ts';
import { replay } from '../replay.ts';
import { addOutputFlags, outputFields } from '../run-outputs.ts';
import { addSloFlags, admissionSettings, sloFields } from '../slo-options.ts';
import { printTable } from '../table.ts';
import { addTransformFlags, addWorkloadFlags, transformFields, workloadFields } from '../workload-options.ts';
import { openWorkload } from '../workload-source.ts';

const count = (least: number) => numeric(z.number().int().min(least));

const schema = z.object({
  trace: z.string().optional(),
  workload: z.string().optional(),
  ...workloadFields,
  ...transformFields,
  ...clusterFields,
  ...sloFields,
  placement: z.enum(placementKinds).default('cache-aware'),
  queue: count(1).default(1_000_000),
  check: z.boolean().default(false),
  chaos: z.boolean().default(false),
  seeds: count(1).default(100),
  ...outputFields,
});

type SimulateOptions = z.infer<typeof schema>;

/** How many times as long as an instance's own prefix another one's must be before it is worth fetching: not published, ours. */
const balancingThreshold = 1.5;

export function simulateCommand(): Command {
  const command = new Command('simulate')
    .description('replay a workload over a described cluster, through the machines that serve')
    .argument('[experiment]', 'YAML file with the names of these flags; flags win')
    .option('--trace <file>', 'Mooncake JSON lines or Azure CSV, plain or gzip')
    .option('--workload <name>', `made up instead: ${presetNames.join(', ')}`)
    .addOption(
      new Option('--placement <policy>', 'who gets a request; random: by --seed (default: cache-aware)').choices(
        placementKinds,
      ),
    )
    .option('--queue <n>', 'requests accepted at once over all instances (default: 1,000,000)')
    .option('--check', 'every machine checks itself after every event')
    .option('--chaos', 'instead of a workload: random faults with every check on, a run for each seed from --seed on')
    .option('--seeds <n>', 'seeds of --chaos (default: 100)')
    .option('--config <file>', 'the same as the argument')
    .option('--json', 'print one JSON object');
  return addOutputFlags(addTransformFlags(addWorkloadFlags(addSloFlags(addClusterFlags(command))))).action(
    async (experiment: string | undefined, { json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      if (experiment !== undefined) flags.config = experiment;
      // Commander gives `true` without such a flag: a config file may still say otherwise.
      for (const name of ['coalesce', 'stream']) if (flags[name] === true) delete flags[name];
      const options = readOptions(schema, flags);
      if (options.chaos) {
        runChaos(options, json === true);
        return;
      }
      const started = performance.now();
      const simulation = await run(options);
      const report = reportOf(simulation.outcome, (performance.now() - started) / 1000);
      if (json === true) console.log(JSON.stringify(report));
      else printReport(report);
    },
  );
}

async function run(options: SimulateOptions): Promise<Simulation> {
  const workload = openWorkload(options);
  const admission = admissionSettings(options);
  const instances = instanceSpecs(options, admission.kind !== 'none');
  return replay(workload, instanceNames(instances), options, (watch) => {
    return new Simulation({
      instances,
      linkBytesPerSecond: options.linkGbps === undefined ? undefined : bytesOf(options.linkGbps),
      blockTokens: options.blockTokens,
      queueMax: options.queue,
      placement: { kind: options.placement, seed: [options.seed, 1], balancingThreshold },
      admission,
      checking: options.check,
      watch,
    });
  });
}

function reportOf(outcome: Outcome, wallSeconds: number) {
  const { requests, completedRequests: completed, promptTokens, cachedTokens, withinSlo } = outcome;
  const simulatedSeconds = outcome.endUs / 1e6;
  const missedBlocks = Object.values(outcome.missReasons).reduce((sum, blocks) => sum + blocks, 0);
  return {
    requests,
    completed,
    refused: { ...outcome.refused, byReason: outcome.refusedByReason },
    wastedPrefillTokens: outcome.wastedPrefillTokens,
    ttftMs: latencyMs(outcome.ttftUs),
    tbtMs: latencyMs(outcome.tbtUs),
    withinSlo,
    goodputRequestsPerSecond: simulatedSeconds === 0 ? 0 : withinSlo / simulatedSeconds,
    predictions: { ttft: outcome.predictedTtft.figures, tbt: outcome.predictedTbt.figures },
    poolLoads: outcome.swing.figures,
    bytesMoved: outcome.bytesMoved,
    hitRatioBlocks: ratio(outcome.hitBlocks, outcome.hitBlocks + missedBlocks),
    hitRatioTokens: ratio(cachedTokens, promptTokens),
    missReasons: outcome.missReasons,
    steps: outcome.steps,
    decodeTokens: outcome.outputTokens,
    prefillTokens: promptTokens - cachedTokens,
    preemptions: outcome.preemptions,
    simulatedSeconds,
    wallSeconds,
    stateHash: outcome.stateHash,
  };
}

function ratio(part: number, all: number): number {
  return all === 0 ? 0 : part / all;
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
  ...counts
}: ReturnType<typeof reportOf>) {
  printTable([counts]);
  const { byReason, ...places } = refused;
  printTable([{ refused: '', ...places, ...byReason }]);
  printTable([{ bytes: '', ...bytesMoved }]);
  printTable([
    { predicted: 'TTFT', ...predictions.ttft },
    { predicted: 'TBT', ...predictions.tbt },
  ]);
  printTable([{ loads: '', ...poolLoads }]);
  printTable([{ missedBlocks: '', ...missReasons }]);
  printTable([
    { ms: 'TTFT', ...ttftMs },
    { ms: 'TBT', ...tbtMs },
  ]);
  printTable([{ simulatedSeconds, wallSeconds: Number(wallSeconds.toFixed(2)), stateHash }]);
}
