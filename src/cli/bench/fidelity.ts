// `kvasir bench fidelity`: a load served live and simulated, side by side.
import { Command } from 'commander';
import { z } from 'zod';
import { calibrationContext } from '../../bench/fidelity/calibrate.ts';
import { benchFidelity, type FidelityReport, type Parting } from '../../bench/fidelity/fidelity.ts';
import { createStepRecord } from '../../runtime/threads/step-record.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { WorkloadGenerator } from '../../trace/workload/generator.ts';
import { pageTokens } from '../../util/step.ts';
import { addFormFlags, readOptions } from '../options/options.ts';
import { openServing } from '../serve/open-serving.ts';
import { printTable } from '../simulate/table.ts';
import { benchModelSchema, count, progress } from './options.ts';

const schema = benchModelSchema.extend({
  instances: z.coerce.number().int().min(1).max(64).default(2),
  threads: count(1),
  requests: z.coerce.number().int().min(10).default(200),
  rate: z.coerce.number().positive().default(4),
  input: z.coerce.number().int().min(16).default(300),
  output: z.coerce.number().int().min(2).default(24),
  seed: z.coerce.number().int().min(0).default(1),
});

/** More where the fewest rounds take longer. */
const calibrationMs = 4000;

/** Each of the two has as many requests as this part of the load. */
const rehearsalShare = 3;

/** Steps that a record has room for. */
const stepsMax = 1_000_000;

export function fidelityCommand(): Command {
  return addFormFlags(new Command('fidelity'))
    .description('a load served live on this machine, and simulated with times fitted to its steps')
    .option('--instances <n>', 'instances of the process (default: 2)')
    .option('--threads <n>', 'compute threads of each (default: 1)')
    .option('--requests <n>', 'requests of the load (default: 200)')
    .option('--rate <n>', 'requests a second (default: 4)')
    .option('--input <tokens>', 'mean length of prompts, half of which are shared (default: 300)')
    .option('--output <tokens>', 'mean length of outputs (default: 24)')
    .option('--seed <n>', 'of the load (default: 1)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { instances, threads, ...options } = readOptions(schema, flags);
      const records = Array.from({ length: instances }, () => createStepRecord(stepsMax));
      const requests = makeLoad(options);
      const length = Math.max(10, Math.ceil(options.requests / rehearsalShare));
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
          startsAhead: described[0].startsAhead === true,
        });
        if (json === true) console.log(JSON.stringify({ model: serving.model.id, instances, threads, ...report }));
        else show(report);
      } finally {
        await serving.close();
      }
    });
}

function makeLoad({
  requests,
  rate,
  input,
  output,
  seed,
}: Omit<z.infer<typeof schema>, 'model' | 'instances' | 'threads'>): readonly TraceRequest[] {
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

function show({ live, simulated, replayed, partings, ...report }: FidelityReport): void {
  printTable([
    { run: 'live', ...live },
    { run: 'simulated', ...simulated },
    { run: 'replayed', ...replayed },
  ]);
  console.log(`TTFT ${report.ttftRatio}, TBT ${report.tbtRatio} of live; with its arrivals and step times`);
  console.log(
    `${(100 * report.samePlacement).toFixed(1)} % at the same instance, hit ratio ${report.hitRatioDifference.toFixed(4)} away`,
  );
  if (partings.length > 0) showParting(partings[0]);
}

/** What the conductors saw of the first request that they sent to different instances. */
function showParting({ index, live, replayed }: Parting): void {
  console.log(`Request ${index} is the first that went elsewhere:`);
  const rows = [
    { run: 'live', account: live },
    { run: 'replayed', account: replayed },
  ];
  printTable(
    rows.flatMap(({ run, account }) =>
      (account?.considered ?? []).map(({ instance, requests, matchedTokens, queueUs, prefillUs }) => {
        const taken = instance === account?.instance;
        const predicted = { queueUs: Math.round(queueUs), prefillUs: Math.round(prefillUs) };
        const fetched = taken ? (account?.fetchedTokens ?? 0) : 0;
        return { run, instance, taken: taken ? 'yes' : '', requests, matchedTokens, ...predicted, fetched };
      }),
    ),
  );
}
