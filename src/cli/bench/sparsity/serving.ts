// `kvasir bench sparse-serving`: throughput with full and with sparse KV in the same KV memory.
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { oneBillion, writeRandomLlama } from '../../../bench/random-gguf.ts';
import { benchSparseServing } from '../../../bench/sparsity/serving.ts';
import { pageTokens } from '../../../util/step.ts';
import { addFormFlags, modelOptionsSchema, readOptions, stepFlag, stepMs } from '../../options/options.ts';
import { sparseFields, sparseSettings } from '../../options/sparse-options.ts';
import { openServing } from '../../serve/open-serving.ts';
import { printTable } from '../../terminal/table.ts';
import { benchModelSchema, blockBytesOf, count, counts, progress, threadsFlag } from '../options.ts';

const schema = benchModelSchema.extend({
  sparse: sparseFields.sparse.default('uniform'),
  sparseDecode: sparseFields.sparseDecode,
  threads: modelOptionsSchema.shape.threads,
  kvMemory: modelOptionsSchema.shape.kvMemory,
  stepMs,
  prompt: count(4000),
  output: count(500),
  clients: z.coerce.number().int().min(0).default(2),
  sparseClients: counts(1, []),
  budgets: counts(2, [512]),
  requests: count(2),
  rounds: count(1),
});

export function sparseServingCommand(): Command {
  return addFormFlags(new Command('sparse-serving'), 'random weights in the shape of a 1B Llama')
    .addOption(threadsFlag())
    .option('--prompt <tokens>', 'Send prompts of this length, each a new one (default: 4000)')
    .option('--output <tokens>', 'Generate this number of tokens (default: 500)')
    .option('--clients <n>', 'Run this number of clients with full KV, or 0 for none (default: 2)')
    .option('--sparse-clients <list>', 'Run these numbers of clients with a KV budget (default: twice --clients)')
    .option('--budgets <list>', 'Compare these KV budgets (default: 512)')
    .option('--kv-memory <size>', 'KV memory of the instance (default: what the clients with full KV fill)')
    .option('--requests <n>', 'Measure this number of requests of each client (default: 2)')
    .option('--rounds <n>', 'Run all loops this number of times, in turns (default: 1)')
    .option('--sparse <rule>', 'first-n, pyramid, uniform or quest, as in serve (default: uniform)')
    .option('--sparse-decode <way>', 'replace or compact, as in serve (default: replace)')
    .addOption(stepFlag())
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const random = join(tmpdir(), `kvasir-sparse-serving-${process.pid}.gguf`);
      try {
        if (options.model === undefined) writeRandomLlama(random, oneBillion);
        const { facts, ...report } = await measure({ ...options, model: options.model ?? random });
        if (json === true) return console.log(JSON.stringify({ ...facts, ...report }));
        const { rows, ...sizes } = report;
        printTable([{ ...facts, ...sizes }], 'Model and requests');
        printTable(
          rows.map(({ pagesOverTime: _, ...row }) => row),
          'Closed loops in the same KV memory',
        );
      } finally {
        rmSync(random, { force: true });
      }
    });
}

async function measure(options: z.infer<typeof schema> & { readonly model: string }) {
  const { model, weights, inputs, kvType, threads, sparse, stepMs } = options;
  const { prompt, output, clients, sparseClients, budgets, requests, rounds } = options;
  // Of a single client with full KV, where none is compared.
  const held = Math.max(1, clients);
  const kvMemory = options.kvMemory ?? held * Math.ceil((prompt + output) / pageTokens) * (await blockBytesOf(options));
  const forms = { weights, inputs, kvType };
  const served = { model, ...forms, threads, kvMemory, context: prompt + output, eviction: 'lru' as const };
  const queue = Math.max(2 * held, ...sparseClients);
  const serving = await openServing(served, { queue, stepMs, sparsity: sparseSettings(options) });
  try {
    await serving.cluster.ready();
    const { id, vocabSize } = serving.model;
    const sparseLoops = budgets.flatMap((budget) =>
      (sparseClients.length > 0 ? sparseClients : [2 * held]).map((clients) => ({ budget, clients })),
    );
    const fullLoops = clients === 0 ? [] : [{ budget: 'full' as const, clients }];
    const report = await benchSparseServing({
      ...{ port: serving.cluster, vocabSize, promptTokens: prompt, outputTokens: output },
      ...{ loops: [...fullLoops, ...sparseLoops], requests, rounds, onProgress: progress },
    });
    return { facts: { model: id, ...forms, threads, sparse, kvMemory, stepMs }, ...report };
  } finally {
    await serving.close();
  }
}
