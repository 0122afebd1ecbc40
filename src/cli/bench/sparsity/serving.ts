// `kvasir bench sparse-serving`: throughput with full and with sparse KV in the same KV memory.
import { Command } from 'commander';
import { benchSparseServing } from '../../../bench/sparsity/serving.ts';
import { pageTokens } from '../../../util/step.ts';
import { addFormFlags, modelOptionsSchema, readOptions } from '../../options/options.ts';
import { sparseFields, sparseSettings } from '../../options/sparse-options.ts';
import { openServing } from '../../serve/open-serving.ts';
import { printTable } from '../../terminal/table.ts';
import { benchModelSchema, blockBytesOf, count, counts, progress, threadsFlag } from '../options.ts';

const schema = benchModelSchema.extend({
  sparse: sparseFields.sparse.default('uniform'),
  sparseDecode: sparseFields.sparseDecode,
  threads: modelOptionsSchema.shape.threads,
  kvMemory: modelOptionsSchema.shape.kvMemory,
  prompt: count(4000),
  output: count(500),
  clients: count(2),
  sparseClients: counts(1, []),
  budgets: counts(2, [512]),
  requests: count(2),
  rounds: count(1),
});

export function sparseServingCommand(): Command {
  return addFormFlags(new Command('sparse-serving'))
    .description('Closed loops of requests with full KV and with a KV budget in the same KV memory, in turns')
    .addOption(threadsFlag())
    .option('--prompt <tokens>', 'Send prompts of this length, each a new one (default: 4000)')
    .option('--output <tokens>', 'Generate this number of tokens (default: 500)')
    .option('--clients <n>', 'Run this number of clients with full KV (default: 2)')
    .option('--sparse-clients <list>', 'Run these numbers of clients with a KV budget (default: twice --clients)')
    .option('--budgets <list>', 'Compare these KV budgets (default: 512)')
    .option('--kv-memory <size>', 'KV memory of the instance (default: what the clients with full KV fill)')
    .option('--requests <n>', 'Measure this number of requests of each client (default: 2)')
    .option('--rounds <n>', 'Run all loops this number of times, in turns (default: 1)')
    .option('--sparse <rule>', 'first-n, pyramid, uniform or quest, as in serve (default: uniform)')
    .option('--sparse-decode <way>', 'replace or compact, as in serve (default: replace)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { prompt, output, clients, sparseClients, budgets, requests, rounds, ...options } = readOptions(
        schema,
        flags,
      );
      const { model, weights, inputs, kvType, threads, sparse } = options;
      const kvMemory =
        options.kvMemory ?? clients * Math.ceil((prompt + output) / pageTokens) * (await blockBytesOf(options));
      const forms = { weights, inputs, kvType };
      const served = { model, ...forms, threads, kvMemory, context: prompt + output, eviction: 'lru' as const };
      const most = Math.max(clients, 2 * clients, ...sparseClients);
      const serving = await openServing(served, { queue: most, sparsity: sparseSettings(options) });
      try {
        await serving.cluster.ready();
        const { id, vocabSize } = serving.model;
        const sparseLoops = budgets.flatMap((budget) =>
          (sparseClients.length > 0 ? sparseClients : [2 * clients]).map((clients) => ({ budget, clients })),
        );
        const report = await benchSparseServing({
          ...{ port: serving.cluster, vocabSize, promptTokens: prompt, outputTokens: output },
          ...{ loops: [{ budget: 'full', clients }, ...sparseLoops], requests, rounds, onProgress: progress },
        });
        const facts = { model: id, inputs, threads, sparse, kvMemory };
        if (json === true) return console.log(JSON.stringify({ ...facts, ...report }));
        const { rows, ...sizes } = report;
        printTable([{ ...facts, ...sizes }], 'Model and requests');
        printTable(rows, 'Closed loops in the same KV memory');
      } finally {
        await serving.close();
      }
    });
}
