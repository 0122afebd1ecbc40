// `kvasir bench grammar`: what masks add to a decode step.
import { Command } from 'commander';
import { z } from 'zod';
import { benchGrammar } from '../../bench/grammar.ts';
import { addFormFlags, modelOptionsSchema, readOptions } from '../options/options.ts';
import { createBackend } from '../serve/backend.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { grammarWorker } from '../serve/model/text-side.ts';
import { printTable } from '../terminal/table.ts';
import { benchModelSchema, count, counts, progress, threadsFlag } from './options.ts';

const text = { type: 'string', maxLength: 200 };
const person = {
  type: 'object',
  properties: { name: text, age: { type: 'integer' }, likes: { type: 'array', items: text } },
};
/** A list of objects with texts, numbers and lists. */
const people = JSON.stringify({
  type: 'array',
  minItems: 50,
  items: { ...person, required: ['name', 'age', 'likes'] },
});

const grammarSchema = benchModelSchema.extend({
  threads: modelOptionsSchema.shape.threads,
  batch: counts(1, [1, 8]),
  depth: count(128),
  generate: count(200),
  schema: z.string().default(people),
});

export function grammarCommand(): Command {
  return addFormFlags(new Command('grammar'))
    .addOption(threadsFlag())
    .option('--batch <list>', 'Decode these numbers of sequences together (default: 1,8)')
    .option('--depth <tokens>', 'Decode at this context length (default: 128)')
    .option('--generate <steps>', 'Time this number of steps of each kind (default: 200)')
    .option('--schema <json>', 'JSON schema of the output (default: a list of people)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { threads, model: named, ...options } = readOptions(grammarSchema, flags);
      const { path: model } = await locateModel(named);
      const backend = createBackend(threads);
      try {
        const report = await benchGrammar(backend, { ...options, model, entry: grammarWorker, onProgress: progress });
        if (json === true) return console.log(JSON.stringify(report));
        const { rows, ...facts } = report;
        printTable([facts], 'Model and machine');
        printTable(rows, 'Decode');
      } finally {
        backend.close();
      }
    });
}
