// `kvasir bench NAME`: measures the engine, the kernels, an endpoint over HTTP, or the accuracy of a form.
import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { z } from 'zod';
import { benchAccuracy } from '../../bench/accuracy.ts';
import { benchEngine } from '../../bench/engine.ts';
import { fullSizes } from '../../bench/http/rows.ts';
import { benchHttp, httpRowNames } from '../../bench/http/run.ts';
import { inputForms, weightsForms } from '../../engine/forms.ts';
import { textOf } from '../../engine/model-text.ts';
import type { Backend } from '../../kernel/backend.ts';
import { openModel } from '../../weights/open-model.ts';
import { createBackend } from '../backend.ts';
import { locateModel } from '../locate-model.ts';
import { addFormFlags, modelFlag, modelOptionsSchema, readOptions } from '../options.ts';
import { printTable } from '../table.ts';
import { UsageError } from '../usage-error.ts';
import { borrowCommand } from './bench-borrow.ts';
import { costCommand } from './bench-cost.ts';
import { distAttentionCommand } from './bench-dist-attention.ts';
import { earlyStartCommand } from './bench-early-start.ts';
import { fidelityCommand } from './bench-fidelity.ts';
import { handOffCommand } from './bench-hand-off.ts';
import { kernelCommand } from './bench-kernel.ts';
import { killsCommand } from './bench-kills.ts';
import { messengerCommand } from './bench-messenger.ts';
import { benchModelSchema, count, counts, list, progress, threadsFlag } from './bench-options.ts';
import { pipelineCommand } from './bench-pipeline.ts';
import { placementCommand } from './bench-placement.ts';
import { soakCommand } from './bench-soak.ts';
import { tiersCommand } from './bench-tiers.ts';

export function benchCommand(): Command {
  return new Command('bench')
    .description(
      'measure: engine, kernel, http, accuracy, cost, placement, hand-off, early-start, pipeline, tiers, messenger, dist-attention, borrow, fidelity, kills, soak',
    )
    .addCommand(engineCommand())
    .addCommand(kernelCommand())
    .addCommand(httpCommand())
    .addCommand(accuracyCommand())
    .addCommand(costCommand())
    .addCommand(placementCommand())
    .addCommand(handOffCommand())
    .addCommand(earlyStartCommand())
    .addCommand(pipelineCommand())
    .addCommand(tiersCommand())
    .addCommand(fidelityCommand())
    .addCommand(killsCommand())
    .addCommand(messengerCommand())
    .addCommand(distAttentionCommand())
    .addCommand(borrowCommand())
    .addCommand(soakCommand());
}

const engineSchema = benchModelSchema.extend({
  threads: modelOptionsSchema.shape.threads,
  prompt: count(512),
  generate: count(64),
  batch: counts(1, [1, 8, 32]),
  depth: counts(0, [0, 512, 4096]),
  repeats: count(5),
});

function engineCommand(): Command {
  return addFormFlags(new Command('engine'))
    .description('prefill and decode steps of a model, without scheduler or HTTP: medians')
    .addOption(threadsFlag())
    .option('--prompt <tokens>', 'tokens of the prompt that is prefilled in one step (default: 512)')
    .option('--generate <steps>', 'steps timed for each decode row (default: 64)')
    .option('--batch <list>', 'sequences that decode together (default: 1,8,32)')
    .option('--depth <list>', 'tokens in the cache of each (default: 0,512,4096)')
    .option('--repeats <n>', 'prefills timed (default: 5)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { threads, model: named, ...options } = readOptions(engineSchema, flags);
      const { path: model } = await locateModel(named);
      const report = withBackend(threads, (backend) =>
        benchEngine(backend, { ...options, model, onProgress: progress }),
      );
      if (json === true) return console.log(JSON.stringify(report));
      const { prefill, decode, ...facts } = report;
      printTable([facts]);
      printTable([{ prefill: prefill.tokens, ms: prefill.ms, tokensPerSecond: prefill.tokensPerSecond }]);
      printTable(decode);
    });
}

const httpSchema = z.object({
  url: z.url({ protocol: /^https?$/, error: 'give the address of a server, like http://127.0.0.1:8000' }),
  rows: list(z.enum(httpRowNames), httpRowNames),
  model: z.string().optional(),
  apiKey: z.string().optional(),
});

function httpCommand(): Command {
  return new Command('http')
    .description('streams, shared prefixes, a long prompt and overload against any OpenAI endpoint')
    .requiredOption('--url <url>', 'address of the server')
    .option('--rows <list>', `rows to run (default: ${httpRowNames.join(',')})`)
    .option('--model <id>', 'model id to ask for (default: the first that the server lists)')
    .option('--api-key <key>', 'bearer token')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(httpSchema, flags);
      const onRow = (name: string, row: object): void => progress(`${name}: ${JSON.stringify(row)}`);
      const report = await benchHttp({ ...options, sizes: fullSizes, onRow });
      if (json === true) return console.log(JSON.stringify(report));
      for (const [name, row] of Object.entries(report.rows)) printTable([{ row: name, ...row }]);
    });
}

const form = z.string().transform((text, context) => {
  const [weights, inputs] = text.split('/');
  const parsed = z.object({ weights: z.enum(weightsForms), inputs: z.enum(inputForms) }).safeParse({ weights, inputs });
  if (parsed.success) return parsed.data;
  context.addIssue({ code: 'custom', message: `'${text}' is no form: write WEIGHTS/INPUTS, for example native/bf16` });
  return z.NEVER;
});

const accuracySchema = modelOptionsSchema.pick({ model: true, threads: true }).extend({
  text: z.string(),
  tokens: z.coerce.number().int().min(2).default(1500),
  forms: list(form, [
    { weights: 'native', inputs: 'f32' },
    { weights: 'native', inputs: 'bf16' },
    { weights: 'native', inputs: 'int8' },
  ]),
});

function accuracyCommand(): Command {
  return new Command('accuracy')
    .description('perplexity, divergence and agreement of forms, against float32 arithmetic on the stored weights')
    .addOption(modelFlag())
    .requiredOption('--text <file>', 'UTF-8 text to read')
    .option('--tokens <n>', 'tokens of it (default: 1500)')
    .option('--forms <list>', 'WEIGHTS/INPUTS (default: native/f32,native/bf16,native/int8)')
    .addOption(threadsFlag())
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { model, threads, text, ...options } = readOptions(accuracySchema, flags);
      const files = openModel((await locateModel(model)).path);
      try {
        const tokenizer = textOf(files)?.tokenizer;
        if (tokenizer === undefined) throw new UsageError(`Cannot read the text: model '${files.id}' has no tokenizer`);
        const report = withBackend(threads, (backend) =>
          benchAccuracy(backend, { ...options, files, tokenizer, text: readText(text) }),
        );
        if (json === true) return console.log(JSON.stringify(report));
        const { rows, ...facts } = report;
        printTable([facts]);
        printTable(rows);
      } finally {
        files.close();
      }
    });
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new UsageError(`Cannot read text ${path}: ${error instanceof Error ? error.message : 'unreadable'}`);
  }
}

function withBackend<T>(threads: number, use: (backend: Backend) => T): T {
  const backend = createBackend(threads);
  try {
    return use(backend);
  } finally {
    backend.close();
  }
}
