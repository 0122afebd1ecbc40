// `kvasir simulate`: replays a trace over a described cluster, through the machines that serve.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { evictionKinds } from '../../policy/blocks/eviction.ts';
import { RooflineCost } from '../../policy/cost/roofline.ts';
import { latencyMs, type Outcome } from '../../sim/outcome.ts';
import { Simulation } from '../../sim/simulation.ts';
import { presetNames } from '../../trace/workload/presets.ts';
import { numeric, readOptions } from '../options.ts';
import { hardwareSpec, modelSpec } from '../specs.ts';
import { printTable } from '../table.ts';
import { UsageError } from '../usage-error.ts';
import { addTransformFlags, addWorkloadFlags, transformFields, workloadFields } from '../workload-options.ts';
import { openWorkload } from '../workload-source.ts';

const count = (least: number) => numeric(z.number().int().min(least));

const schema = z.object({
  trace: z.string().optional(),
  workload: z.string().optional(),
  ...workloadFields,
  ...transformFields,
  model: z.string().default('llama2-70b'),
  hardware: z.string().default('a800x8'),
  models: z.string().optional(),
  machines: z.string().optional(),
  mixed: count(1).default(8),
  tp: count(1).optional(),
  pp: count(1).default(1),
  precision: z.enum(['bf16', 'fp8']).default('bf16'),
  blockTokens: count(1).default(512),
  cacheBlocks: count(1).optional(),
  eviction: z.enum(evictionKinds).default('lru'),
  queue: count(1).default(1_000_000),
  chunkTokens: count(1).default(8192),
  sequences: count(1).default(256),
  stepMs: numeric(z.number().positive()).default(100),
  coalesce: z.boolean().default(true),
  check: z.boolean().default(false),
});

type SimulateOptions = z.infer<typeof schema>;

/** What kernels reach of the peaks and what a step costs besides, unless a measured table says better: stated, not fitted. */
const efficiency = { compute: 0.6, memory: 0.8, link: 0.7, stepUs: 500, layerUs: 10 };
/** Of the memory that weights leave, what an engine keeps for itself is the rest. */
const kvMemoryShare = 0.9;

export function simulateCommand(): Command {
  const command = new Command('simulate')
    .description('replay a workload over a described cluster, through the machines that serve')
    .option('--trace <file>', 'Mooncake JSON lines or Azure CSV, plain or gzip')
    .option('--workload <name>', `made up instead: ${presetNames.join(', ')}`)
    .option('--model <name>', 'of specs/models.yaml (default: llama2-70b)')
    .option('--hardware <name>', 'of specs/hardware.yaml, one for each instance (default: a800x8)')
    .option('--models <file>', 'YAML file with more models')
    .option('--machines <file>', 'YAML file with more hardware')
    .option('--mixed <n>', 'instances that prefill and decode alike (default: 8)')
    .option('--tp <n>', 'devices that share each layer (default: all of the instance)')
    .option('--pp <n>', 'groups of devices that share out the layers (default: 1)')
    .addOption(new Option('--precision <type>', 'weights and arithmetic (default: bf16)').choices(['bf16', 'fp8']))
    .option('--block-tokens <n>', 'tokens of a block, the same as the trace (default: 512)')
    .option('--cache-blocks <n>', 'blocks of KV that an instance holds (default: by its memory)')
    .addOption(new Option('--eviction <order>', 'which cached blocks go first (default: lru)').choices(evictionKinds))
    .option('--queue <n>', 'requests accepted at once over all instances (default: 1,000,000)')
    .option('--chunk-tokens <n>', 'rows of a step at most (default: 8192)')
    .option('--sequences <n>', 'sequences that an instance runs at once (default: 256)')
    .option('--step-ms <ms>', 'predicted time of a step that decodes beside prefill (default: 100)')
    .option('--no-coalesce', 'run equal decode steps one by one: slower, the same outcome')
    .option('--check', 'every machine checks itself after every event')
    .option('--config <file>', 'YAML file with the same names as these flags; flags win')
    .option('--json', 'print one JSON object');
  return addTransformFlags(addWorkloadFlags(command)).action(
    async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      // Commander gives `coalesce: true` without the flag: a config file may still say otherwise.
      if (flags.coalesce === true) delete flags.coalesce;
      const options = readOptions(schema, flags);
      const workload = openWorkload(options);
      const started = performance.now();
      const simulation = createSimulation(options);
      for await (const { requests } of workload) for (const request of requests) simulation.arrive(request);
      simulation.finish();
      const report = reportOf(simulation.outcome, (performance.now() - started) / 1000);
      if (json === true) console.log(JSON.stringify(report));
      else printReport(report);
    },
  );
}

function createSimulation(options: SimulateOptions): Simulation {
  const { devices, operationsPerSecond, ...device } = hardwareSpec(options.hardware, options.machines);
  const operations = operationsPerSecond[options.precision];
  if (operations === undefined) {
    throw new UsageError(`Cannot use --precision ${options.precision}: ${options.hardware} has no such arithmetic`);
  }
  const tensorParallel = options.tp ?? Math.floor(devices / options.pp);
  if (tensorParallel * options.pp > devices || tensorParallel < 1) {
    throw new UsageError(
      `Cannot use --tp ${tensorParallel} with --pp ${options.pp}: ${options.hardware} has ${devices} devices`,
    );
  }
  const cost = new RooflineCost({
    model: modelSpec(options.model, options.models),
    device: { ...device, operationsPerSecond: operations },
    efficiency,
    tensorParallel,
    pipelineParallel: options.pp,
    weightBytes: options.precision === 'fp8' ? 1 : 2,
    kvBytes: 2,
    kvMemoryShare,
  });
  return new Simulation({
    mixed: options.mixed,
    instance: {
      cost,
      blockTokens: options.blockTokens,
      blocks: options.cacheBlocks,
      eviction: options.eviction,
      limits: {
        tokensMax: Math.max(options.chunkTokens, options.sequences + options.blockTokens),
        logitRowsMax: options.sequences + 1,
        sequencesMax: options.sequences,
        stepUsDecoding: options.stepMs * 1000,
        stepUsPrefill: Number.MAX_SAFE_INTEGER,
      },
      coalesce: options.coalesce,
    },
    queueMax: options.queue,
    checking: options.check,
  });
}

function reportOf(outcome: Outcome, wallSeconds: number) {
  const { requests, completedRequests: completed, refusedRequests, promptTokens, cachedTokens } = outcome;
  return {
    requests,
    completed,
    refused: refusedRequests,
    ttftMs: latencyMs(outcome.ttftUs),
    tbtMs: latencyMs(outcome.tbtUs),
    hitRatioTokens: promptTokens === 0 ? 0 : cachedTokens / promptTokens,
    steps: outcome.steps,
    decodeTokens: outcome.outputTokens,
    prefillTokens: promptTokens - cachedTokens,
    preemptions: outcome.preemptions,
    simulatedSeconds: outcome.endUs / 1e6,
    wallSeconds,
    stateHash: outcome.stateHash,
  };
}

function printReport({
  ttftMs,
  tbtMs,
  stateHash,
  simulatedSeconds,
  wallSeconds,
  ...counts
}: ReturnType<typeof reportOf>) {
  printTable([counts]);
  printTable([
    { ms: 'TTFT', ...ttftMs },
    { ms: 'TBT', ...tbtMs },
  ]);
  printTable([{ simulatedSeconds, wallSeconds: Number(wallSeconds.toFixed(2)), stateHash }]);
}
