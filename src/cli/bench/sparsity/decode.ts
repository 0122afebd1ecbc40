// `kvasir bench sparse-decode`: decode steps over all keys, kept tokens and chosen pages.
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { oneBillion, writeRandomLlama } from '../../../bench/random-gguf.ts';
import { benchSparseDecode, decodeMethods } from '../../../bench/sparsity/decode.ts';
import { openModel } from '../../../weights/open-model.ts';
import { addFormFlags, modelOptionsSchema, readOptions } from '../../options/options.ts';
import { withBackend } from '../../serve/backend.ts';
import { locateModel } from '../../serve/model/locate-model.ts';
import { printTable } from '../../terminal/table.ts';
import { benchModelSchema, count, counts, list, progress, threadsFlag } from '../options.ts';

const schema = benchModelSchema.extend({
  threads: modelOptionsSchema.shape.threads,
  methods: list(z.enum(decodeMethods), decodeMethods),
  contexts: counts(64, [4096, 32_768]),
  batch: count(1),
  budget: count(1024),
  repeats: count(21),
});

export function sparseDecodeCommand(): Command {
  return addFormFlags(new Command('sparse-decode'), 'random weights in the shape of a 1B Llama')
    .addOption(threadsFlag())
    .option('--methods <list>', `Compare these of ${decodeMethods.join(', ')}, each with the first (default: all)`)
    .option(
      '--contexts <list>',
      "Decode at these context lengths, which may exceed the model's own (default: 4096,32768)",
    )
    .option('--batch <n>', 'Decode this number of sequences together (default: 1)')
    .option('--budget <tokens>', 'Keep, or read, this number of tokens of a sparse layer (default: 1024)')
    .option('--repeats <n>', 'Time this number of steps of each method, in turns (default: 21)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { model: named, threads, ...options } = readOptions(schema, flags);
      const path = join(tmpdir(), `kvasir-sparse-decode-${process.pid}.gguf`);
      try {
        if (named === undefined) writeRandomLlama(path, oneBillion);
        const files = openModel(named === undefined ? path : (await locateModel(named)).path);
        try {
          const report = withBackend(threads, (backend) =>
            benchSparseDecode(backend, { ...options, files, onProgress: progress }),
          );
          if (json === true) return console.log(JSON.stringify(report));
          const { rows, ...facts } = report;
          printTable([facts], 'Model and machine');
          printTable(rows, 'Decode steps');
        } finally {
          files.close();
        }
      } finally {
        rmSync(path, { force: true });
      }
    });
}
