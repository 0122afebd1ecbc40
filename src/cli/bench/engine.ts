// `kvasir bench engine`: prefill and decode steps of a model.
import { Command } from 'commander';
import { benchEngine } from '../../bench/engine.ts';
import { addFormFlags, modelOptionsSchema, readOptions } from '../options/options.ts';
import { withBackend } from '../serve/backend.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { printTable } from '../terminal/table.ts';
import { benchModelSchema, count, counts, progress, threadsFlag } from './options.ts';

const engineSchema = benchModelSchema.extend({
  threads: modelOptionsSchema.shape.threads,
  prompt: count(512),
  generate: count(64),
  batch: counts(1, [1, 8, 32]),
  depth: counts(0, [0, 512, 4096]),
  repeats: count(5),
});

export function engineCommand(): Command {
  return addFormFlags(new Command('engine'))
    .addOption(threadsFlag())
    .option('--prompt <tokens>', 'Prefill a prompt of this length in one step (default: 512)')
    .option('--generate <steps>', 'Time this number of decode steps per row (default: 64)')
    .option('--batch <list>', 'Decode these numbers of sequences together (default: 1,8,32)')
    .option('--depth <list>', 'Decode at these context lengths (default: 0,512,4096)')
    .option('--repeats <n>', 'Time this number of prefills (default: 5)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { threads, model: named, ...options } = readOptions(engineSchema, flags);
      const { path: model } = await locateModel(named);
      const report = withBackend(threads, (backend) =>
        benchEngine(backend, { ...options, model, onProgress: progress }),
      );
      if (json === true) return console.log(JSON.stringify(report));
      const { prefill, decode, ...facts } = report;
      printTable([facts], 'Model and machine');
      printTable([prefill], 'Prefill');
      printTable(decode, 'Decode');
    });
}
