// `kvasir bench accuracy`: the loss of quality of each form of weights, inputs, and keys and values.
import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { z } from 'zod';
import { benchAccuracy } from '../../bench/accuracy.ts';
import { inputForms, kvTypeChoices, weightsForms } from '../../engine/forms.ts';
import { textOf } from '../../engine/model-text.ts';
import { openModel } from '../../weights/open-model.ts';
import { modelFlag, modelOptionsSchema, readOptions } from '../options/options.ts';
import { withBackend } from '../serve/backend.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { list, threadsFlag } from './options.ts';

const formSchema = z.object({
  weights: z.enum(weightsForms),
  inputs: z.enum(inputForms),
  kvType: z.enum(kvTypeChoices).optional(),
});

const form = z.string().transform((text, context) => {
  const [weights, inputs, kvType, ...more] = text.split('/');
  const parsed = formSchema.safeParse({ weights, inputs, kvType });
  if (parsed.success && more.length === 0) return parsed.data;
  context.addIssue({
    code: 'custom',
    message: `'${text}' is not a form: write WEIGHTS/INPUTS or WEIGHTS/INPUTS/KV, for example native/bf16/q8`,
  });
  return z.NEVER;
});

const accuracySchema = modelOptionsSchema.pick({ model: true, threads: true }).extend({
  text: z.string(),
  tokens: z.coerce.number().int().min(2).default(1500),
  forms: list(form, [
    { weights: 'native', inputs: 'f32' },
    { weights: 'native', inputs: 'bf16' },
    { weights: 'native', inputs: 'bf16', kvType: 'q8' },
    { weights: 'native', inputs: 'i16' },
    { weights: 'native', inputs: 'i16', kvType: 'q8' },
    { weights: 'native', inputs: 'int8' },
  ]),
});

export function accuracyCommand(): Command {
  return new Command('accuracy')
    .addOption(modelFlag())
    .requiredOption('--text <file>', 'Read this UTF-8 text')
    .option('--tokens <n>', 'Use this number of its tokens (default: 1500)')
    .option(
      '--forms <list>',
      'Compare these WEIGHTS/INPUTS or WEIGHTS/INPUTS/KV (default: native with inputs f32, bf16, i16 and int8, and q8 beside bf16 and i16)',
    )
    .addOption(threadsFlag())
    .option('--json', 'Print one JSON object')
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
        printTable([facts], 'Model and text');
        printTable(rows, 'Quality against float32 arithmetic on the stored weights');
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
