// `kvasir bench attention-workers`: overlap, staggered batches and transport of one model worker and one attention worker.
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { benchAttentionWorkers } from '../../bench/attention-workers.ts';
import { oneBillion, writeRandomLlama } from '../../bench/random-gguf.ts';
import { modelFlag, readOptions } from '../options/options.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { printTable } from '../terminal/table.ts';
import { count, counts, progress } from './options.ts';

const schema = z.object({
  model: z.string().optional(),
  contexts: counts(1, [1024, 8192, 32_768]),
  batches: counts(1, [1, 2, 4, 8]),
  staggeredContext: count(8192),
  repeats: count(11),
});

export function attentionWorkersCommand(): Command {
  return new Command('attention-workers')
    .addOption(modelFlag().default(undefined, 'random weights in the shape of a 1B Llama'))
    .option(
      '--contexts <list>',
      'Decode one sequence of these lengths, with overlap in both forms and without (default: 1024,8192,32768)',
    )
    .option(
      '--batches <list>',
      'Decode two batches of this number of sequences, in turn and staggered (default: 1,2,4,8)',
    )
    .option('--staggered-context <tokens>', 'Decode these batches at this context length (default: 8192)')
    .option('--repeats <n>', 'Repeat each measurement this number of times (default: 11)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { model: named, ...options } = readOptions(schema, flags);
      const path = join(tmpdir(), `kvasir-attention-workers-${process.pid}.gguf`);
      try {
        if (named === undefined) writeRandomLlama(path, { ...oneBillion, positions: 65_536 });
        const model = named === undefined ? path : (await locateModel(named)).path;
        const report = benchAttentionWorkers({ ...options, model, onProgress: progress });
        if (json === true) return console.log(JSON.stringify(report));
        printTable(report.overlap, 'Overlap: a decode step of one sequence');
        printTable(report.staggered, 'Two batches in turn and staggered');
        printTable(report.transport, 'Transport');
      } finally {
        rmSync(path, { force: true });
      }
    });
}
