// `kvasir bench fidelity`: a load served live and simulated, side by side.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { calibrationContext } from '../../bench/fidelity/calibrate.ts';
import { benchFidelity, type FidelityReport, type PlacementDifference } from '../../bench/fidelity/fidelity.ts';
import { createStepRecord } from '../../runtime/threads/step-record.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { WorkloadGenerator } from '../../trace/workload/generator.ts';
import { pageTokens } from '../../util/step.ts';
import { addFormFlags, readOptions } from '../options/options.ts';
import { openServing } from '../serve/open-serving.ts';
import { printReplay, replayRecording } from '../simulate/replay/replay-run.ts';
import { replayFlags } from '../simulate/replay/replay-settings.ts';
import { percent, readable } from '../terminal/fields.ts';
import { printList, printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { type RecordedKind, recordedKinds, withRecording } from './cluster/recorded-cluster.ts';
import { benchModelSchema, blockBytesOf, count, progress } from './options.ts';

const schema = benchModelSchema.extend({
  instances: z.coerce.number().int().min(1).max(64).optional(),
  threads: count(1),
  requests: z.coerce.number().int().min(10).default(200),
  rate: z.coerce.number().positive().default(4),
  input: z.coerce.number().int().min(16).default(300),
  output: z.coerce.number().int().min(2).default(24),
  seed: z.coerce.number().int().min(0).default(1),
  processes: z.enum(recordedKinds).optional(),
});

const instancesDefault = 2;

/** Time in which calibration rounds start; the smallest number of rounds may take longer. */
const calibrationMs = 4000;

/** Requests of the load over those of each of the two rehearsals. */
const rehearsalDivisor = 3;

/** Capacity of a step record. */
const stepsMax = 1_000_000;

export function fidelityCommand(): Command {
  return addFormFlags(new Command('fidelity'))
    .option('--instances <n>', 'Run this number of instances (default: 2)')
    .option('--threads <n>', 'Give each instance this number of threads (default: 1)')
    .option('--requests <n>', 'Send this number of requests (default: 200)')
    .option('--rate <n>', 'Send this mean number of requests per second (default: 4)')
    .option('--input <tokens>', 'Draw prompts of this mean length, half of it shared (default: 300)')
    .option('--output <tokens>', 'Draw outputs of this mean length (default: 24)')
    .option('--seed <n>', 'Seed the load (default: 1)')
    .addOption(
      new Option(
        '--processes <kind>',
        'Record the load on two processes instead, and replay it: mixed, prefill and decode, host memory, or borrowing',
      ).choices(recordedKinds),
    )
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { instances: given, threads, processes, ...options } = readOptions(schema, flags);
      const instances = given ?? instancesDefault;
      if (processes !== undefined) {
        if (given !== undefined)
          throw new UsageError(`Cannot use --instances with --processes: ${processes} has two processes`);
        await replayProcesses(processes, { ...options, threads }, json === true);
        return;
      }
      const records = Array.from({ length: instances }, () => createStepRecord(stepsMax));
      const requests = makeLoad(options);
      const length = Math.max(10, Math.ceil(options.requests / rehearsalDivisor));
      const rehearsal = (other: number) => makeLoad({ ...options, requests: length, seed: options.seed + other });
      const rehearsals = [rehearsal(2 ** 20), rehearsal(2 ** 21)] as const;
      const longest = Math.max(
        ...[requests, ...rehearsals].flat().map(({ inputTokens, outputTokens }) => inputTokens + outputTokens),
      );
      const context = Math.max(longest, calibrationContext);
      const serving = await openServing(
        { ...options, threads, context, eviction: 'lru' },
        { queue: 2 ** 20, records, instances: records.map(() => ({ role: 'mixed', threads })) },
      );
      try {
        const described = await serving.cluster.ready();
        const report = await benchFidelity({
          ...{ cluster: serving.cluster, records, requests, rehearsals, onProgress: progress },
          ...{ vocabSize: serving.model.vocabSize, contextTokens: context, calibrationMs },
          capacityTokens: described.map(({ capacityTokens }) => capacityTokens),
          kvBytesPerToken: described[0].kvBytes / described[0].capacityTokens,
          layers: described[0].stageLayers ?? 1,
          aheadOfUse: described[0].aheadOfUse === true,
        });
        if (json === true) console.log(JSON.stringify({ model: serving.model.id, instances, threads, ...report }));
        else show(report);
      } finally {
        await serving.close();
      }
    });
}

type LoadOptions = Omit<z.infer<typeof schema>, 'instances' | 'processes'>;

/** Records the load over processes, and replays the recording with recorded and with fitted step times. */
async function replayProcesses(kind: RecordedKind, options: LoadOptions, json: boolean): Promise<void> {
  const { model, threads, weights, inputs, kvType } = options;
  const requests = makeLoad(options);
  const contextTokens = Math.max(...requests.map(({ inputTokens, outputTokens }) => inputTokens + outputTokens));
  const forms = { weights, inputs, 'kv-type': kvType };
  const load = { kind, model, forms, threads, blockBytes: await blockBytesOf(options), contextTokens, requests };
  const [recorded, fitted] = await withRecording(load, async (replay) => {
    progress(`recorded ${requests.length} requests`);
    return [
      await replayRecording(replayFlags({ replay }), false),
      await replayRecording(replayFlags({ replay, stepTimes: 'fitted' }), false),
    ];
  });
  if (json) console.log(JSON.stringify({ kind, threads, recorded, fitted }));
  else
    for (const [times, replay] of [['recorded', recorded] as const, ['fitted', fitted] as const]) {
      console.log(`With ${times} step times`);
      printReplay(replay);
    }
}

function makeLoad({
  requests,
  rate,
  input,
  output,
  seed,
}: Omit<LoadOptions, 'model' | 'threads'>): readonly TraceRequest[] {
  const generator = new WorkloadGenerator(
    {
      arrivals: { kind: 'poisson', requestsPerSecond: rate },
      lengths: {
        kind: 'drawn',
        input: { kind: 'log-normal', mean: input, variation: 0.5 },
        output: { kind: 'log-normal', mean: output, variation: 0.5 },
      },
      ...{ long: undefined, prefixes: { families: 8, zipf: 1, share: 0.5 }, sessions: undefined },
      contextTokens: 4 * (input + output),
    },
    { seed, blockTokens: pageTokens },
  );
  return Array.from({ length: requests }, () => generator.next());
}

function show({ live, simulated, replayed, placementDifferences, ...report }: FidelityReport): void {
  const rows = [
    { run: 'live', ...live },
    { run: 'simulated', ...simulated },
    { run: 'replayed', ...replayed },
  ];
  printTable(rows, 'Live, simulated with fitted times, and replayed with live arrivals and step times');
  printList('Simulated against live', [
    ['TTFT ratio', readable(report.ttftRatio)],
    ['TBT ratio', readable(report.tbtRatio)],
    ['same placement in the replay', percent(report.samePlacement)],
    ['hit ratio difference in the replay', report.hitRatioDifference.toFixed(4)],
  ]);
  if (placementDifferences.length > 0) showPlacementDifference(placementDifferences[0]);
}

/** The placement traces of the first request that went to different instances. */
function showPlacementDifference({ index, live, replayed }: PlacementDifference): void {
  const rows = [
    { run: 'live', trace: live },
    { run: 'replayed', trace: replayed },
  ];
  printTable(
    rows.flatMap(({ run, trace }) =>
      (trace?.candidates ?? []).map(({ instance, requests, matchedTokens, queueUs, prefillUs }) => {
        const taken = instance === trace?.instance;
        const predicted = { queueUs: Math.round(queueUs), prefillUs: Math.round(prefillUs) };
        const fetched = taken ? (trace?.fetchedTokens ?? 0) : 0;
        return { run, instance, taken: taken ? 'yes' : '', requests, matchedTokens, ...predicted, fetched };
      }),
    ),
    `Request ${index}, the first with different placements`,
  );
}
