// `kvasir bench dist-attention`: attention of one row over two instances against two threads, and queries against fetched pages.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { benchDistAttention } from '../../bench/dist-attention.ts';
import { readOptions } from '../options/options.ts';
import { createBackend } from '../serve/backend.ts';
import { printTable } from '../terminal/table.ts';
import { counts, progress } from './options.ts';

const ranges = (defaults: readonly number[]) =>
  counts(1024, defaults).refine((all) => all.every((one) => one % 1024 === 0), 'multiples of 1024');

const transports = ['memory', 'shared', 'tcp'] as const;

const schema = z.object({
  contexts: ranges([16_384, 65_536]),
  remote: ranges([8192, 32_768]),
  layers: z.coerce.number().int().min(1).max(64).default(4),
  repeats: z.coerce.number().int().min(1).default(21),
  transport: z.enum(transports).default('memory'),
});

export function distAttentionCommand(): Command {
  return new Command('dist-attention')
    .option(
      '--contexts <list>',
      'Attend over these context lengths, multiples of 1024, half of them at the creditor (default: 16384,65536)',
    )
    .option('--remote <list>', 'Compare queries with fetches for these remote lengths (default: 8192,32768)')
    .option('--layers <n>', 'Run this number of attention layers per step (default: 4)')
    .option('--repeats <n>', 'Repeat each measurement this number of times (default: 21)')
    .addOption(new Option('--transport <way>', 'Move queries and pages this way (default: memory)').choices(transports))
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const [two, debtor, creditor] = [createBackend(2), createBackend(1), createBackend(1)];
      try {
        const report = await benchDistAttention({ ...options, two, debtor, creditor, onProgress: progress });
        if (json === true)
          return console.log(
            JSON.stringify({ isa: two.isa, layers: options.layers, transport: options.transport, ...report }),
          );
        printTable(report.split, 'Attention of one row over two instances against two threads');
        printTable(report.shipping, 'Sending queries against fetching pages');
      } finally {
        for (const backend of [two, debtor, creditor]) backend.close();
      }
    });
}
